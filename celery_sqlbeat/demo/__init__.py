"""The demonstration: real beats and workers on one machine, two of them killed, and an audit of all slots."""
