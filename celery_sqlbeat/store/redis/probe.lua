-- Try each command of the other scripts on keys that are not there, so that nothing is changed.
--
-- KEYS: a text and an index, neither of which exists.
-- Returns the names of the commands that failed, each followed by its error.
local text, index = KEYS[1], KEYS[2]
local failed = {}

local function try(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    failed[#failed + 1], failed[#failed + 2] = ({ ... })[1], answer.err
  end
end

try('TIME')
try('GET', text)
try('MGET', text)
try('GETRANGE', text, 0, 0)
try('SET', text, '', 'XX', 'PX', 1)
try('DEL', text)
try('ZRANGE', index, '-inf', '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
try('ZCOUNT', index, '-inf', '+inf')
try('ZSCORE', index, '')
try('ZADD', index, 'XX', 0, '')
try('ZREM', index, '')
return failed
