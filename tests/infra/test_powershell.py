"""The PowerShell of infra/, read by its grammar.

Machines that build this package have neither PowerShell nor Azure.
"""

import re
from pathlib import Path

import pytest
from tree_sitter import Node

from tests.infra.powershell import Script, asks_first, command_name, given, read, splats, text

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
ALL = {str(path.relative_to(INFRA)): read(path) for path in sorted(INFRA.rglob("*.ps1"))}
RUN = {name: script for name, script in ALL.items() if not name.startswith("tests/")}
ENTRIES = {name: RUN[name] for name in ("create.ps1", "cleanup.ps1")}
PARTS = {name: script for name, script in RUN.items() if name.startswith("parts/")}
FUNCTIONS = {function.name: function for script in PARTS.values() for function in script.functions()}
COMMON = {"ErrorAction", "WhatIf", "Confirm", "Verbose", "Force"}
CHANGES = re.compile(r"(New|Set|Remove|Enable|Disable|Update|Add)-Az\w+|Invoke-Sqlcmd|Invoke-Script")
HARMLESS = {"Set-AzContext"}  # changes nothing in Azure


def test_all_scripts_are_found() -> None:
    assert set(ALL) == {
        "cleanup.ps1",
        "create.ps1",
        "parts/context.ps1",
        "parts/identity.ps1",
        "parts/network.ps1",
        "parts/schema.ps1",
        "parts/server.ps1",
        "tests/Azure.ps1",
        "tests/cleanup.Tests.ps1",
        "tests/create.Tests.ps1",
    }


@pytest.mark.parametrize("name", ALL)
def test_a_script_parses(name: str) -> None:
    assert ALL[name].errors() == []


def test_the_reading_finds_errors(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.ps1"
    wrong.write_text("if ($x { New-AzThing }")
    assert read(wrong).errors()


@pytest.mark.parametrize("name", RUN)
def test_a_script_is_strict(name: str) -> None:
    assert "Set-StrictMode -Version Latest" in {text(command) for command in RUN[name].commands()}
    if name in ENTRIES:  # the parts are read into these, and run by their preferences
        assert re.search(r"^\$ErrorActionPreference = 'Stop'$", RUN[name].text, re.MULTILINE)


def test_what_must_be_given_and_what_holds_otherwise() -> None:
    for name, script in ENTRIES.items():
        found = script.parameters()
        assert found["SubscriptionId"].mandatory and found["SubscriptionId"].kind == "guid", name
        assert found["ResourceGroupName"].default == "'cristp-reltaskexec'", name
        required = {parameter.name for parameter in found.values() if parameter.mandatory}
        assert required - {"SubnetId"} == {"SubscriptionId"}, name
    create = ENTRIES["create.ps1"].parameters()
    assert create["Location"].default == "'west us2'"
    assert create["Tier"].default == "'Serverless'"
    assert create["DatabaseName"].default == "'sqlbeat'"
    assert {"EntraAdminName", "EntraAdminObjectId", "IdentityName", "SubnetId", "AllowIpAddress"} <= create.keys()


def test_the_private_endpoint_and_the_firewall_exclude_each_other() -> None:
    text = ENTRIES["create.ps1"].text
    assert re.search(
        r"\[Parameter\(Mandatory, ParameterSetName = 'PrivateEndpoint'\)\]\s+\[Validate.*\s+\[string\] \$SubnetId", text
    )
    assert text.count("[Parameter(ParameterSetName = 'Firewall')]") == 2


@pytest.mark.parametrize("name", ENTRIES)
def test_a_script_can_say_what_it_would_do(name: str) -> None:
    assert "SupportsShouldProcess" in ENTRIES[name].attribute("CmdletBinding")


def test_cleanup_asks_and_can_be_forced() -> None:
    cleanup = ENTRIES["cleanup.ps1"]
    assert "ConfirmImpact = 'High'" in cleanup.attribute("CmdletBinding")
    assert cleanup.parameters()["Force"].kind == "switch"


@pytest.mark.parametrize("name", RUN)
def test_nothing_is_changed_without_asking_what_if(name: str) -> None:
    script = RUN[name]
    for command in script.commands():
        called = command_name(command)
        if CHANGES.fullmatch(called) and called not in HARMLESS and not _is_inside("Invoke-Script", script, command):
            assert asks_first(command), f"{called} in {name}, line {command.start_point.row + 1}"


def _is_inside(function: str, script: Script, command: Node) -> bool:
    return any(command in each.commands() for each in script.functions() if each.name == function)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_asks_says_that_it_can(name: str) -> None:
    function = FUNCTIONS[name]
    if "ShouldProcess(" in function.text:
        assert "SupportsShouldProcess" in function.attribute("CmdletBinding")
    assert ".SYNOPSIS" in function.help()


def test_functions_are_called_with_parameters_that_they_have() -> None:
    called = set()
    for script in RUN.values():
        for command in script.commands():
            function = FUNCTIONS.get(command_name(command))
            if function is None:
                continue
            called.add(function.name)
            known = function.parameters()
            assert given(command) <= known.keys() | COMMON, text(command)
            if not splats(command):
                assert {each.name for each in known.values() if each.mandatory} <= given(command), text(command)
    assert called == FUNCTIONS.keys()


def test_tests_know_every_command_of_azure_that_is_used_with_its_parameters() -> None:
    stubs = (INFRA / "tests/Azure.ps1").read_text()
    body = stubs[stubs.index("$commands = @{") : stubs.index("\n}\n")]
    known = {
        match["name"]: set(re.findall(r"'(\w+)'", match["parameters"]))
        for match in re.finditer(
            r"^    '(?P<name>[A-Z]\w+-\w+)'\s*=(?P<parameters>(?:.|\n(?!    '[A-Z]\w+-))*)", body, re.MULTILINE
        )
    }
    used = set()
    for script in RUN.values():
        for command in script.commands():
            name = command_name(command)
            if re.fullmatch(r"\w+-Az\w+|Invoke-Sqlcmd", name):
                used.add(name)
                assert given(command) <= known[name] | COMMON, text(command)
    assert used | {"Connect-AzAccount"} == known.keys()


@pytest.mark.parametrize("name", ENTRIES)
def test_help_tells_of_every_parameter(name: str) -> None:
    script = ENTRIES[name]
    comment = script.help()
    for section in (".SYNOPSIS", ".DESCRIPTION", ".EXAMPLE", ".OUTPUTS"):
        assert section in comment
    assert set(re.findall(r"\.PARAMETER (\w+)", comment)) == script.parameters().keys()


def test_the_schema_is_the_one_that_init_prints_and_the_role_the_one_of_grants_sql() -> None:
    commands = [text(command) for script in RUN.values() for command in script.commands()]
    assert "celery sqlbeat init --sql" in commands
    assert any("'../sql/mssql/grants.sql'" in command for command in commands)
    grants = (ROOT / "sql/mssql/grants.sql").read_text()
    role = re.search(r"ALTER ROLE (\w+) ADD MEMBER", RUN["parts/schema.ps1"].text)
    assert role and f"CREATE ROLE {role[1]}" in grants


def test_the_server_takes_no_sql_login() -> None:
    server = RUN["parts/server.ps1"].text
    assert re.search(r"EnableActiveDirectoryOnlyAuthentication\s+= \$true", server)
    assert "Enable-AzSqlServerActiveDirectoryOnlyAuthentication" in server
    assert "SqlAdministratorCredentials" not in server


WRITES = re.compile(
    r"(Out-File|Set-Content|Add-Content|Export-\w+|Tee-Object|Start-Transcript|Set-AzKeyVault\w*)", re.IGNORECASE
)
SECRETS = re.compile(
    r"passw|secret(?!\w*account)|\bpwd\b|PSCredential|Get-Credential|AsPlainText\s+-Force|sas_?token", re.IGNORECASE
)


@pytest.mark.parametrize("name", RUN)
def test_no_secret_is_in_a_script_and_none_is_written(name: str) -> None:
    script = RUN[name]
    code = re.sub(r"(?m)#.*$", "", re.sub(r"(?s)<#.*?#>", "", script.text))
    assert SECRETS.findall(code) == []
    for command in script.commands():
        assert not WRITES.fullmatch(command_name(command)), text(command)
        if command_name(command).startswith("Write-"):
            assert "token" not in text(command).lower()


def test_the_token_stays_in_the_function_that_connects() -> None:
    holders = [name for name, function in FUNCTIONS.items() if "$token" in function.text]
    assert holders == ["Invoke-Script"]
    assert all("$token" not in script.text for script in ENTRIES.values())
