-- Read rows and indexes as they are at one moment, with the server's clock and the change counter.
--
-- KEYS: the counter, the rows, the index of each scan.
-- ARGV: how many rows; for each scan the least and the greatest score, how many (-1: all), the id
--       behind which it begins ("": at the first), "1" for the last first, "1" to count only.
-- Returns seconds, microseconds, the counter, the rows (nil where there is none), and for each scan
-- a number, or ids with their scores.
local MOST = 1000 -- keys of one MGET; Lua's stack is short

local rows, scans = {}, {}
local last = 1 + tonumber(ARGV[1])
for first = 2, last, MOST do
  local part = redis.call('MGET', unpack(KEYS, first, math.min(last, first + MOST - 1)))
  for at = 1, #part do
    rows[#rows + 1] = part[at]
  end
end

local function ids_behind(index, id, reversed, limit)
  local range = { 'ZRANGE', index, '(' .. id, reversed and '-' or '+', 'BYLEX' }
  if reversed then
    range[#range + 1] = 'REV'
  end
  range[#range + 1], range[#range + 2], range[#range + 3] = 'LIMIT', 0, limit
  local ids, pairs_ = redis.call(unpack(range)), {}
  if #ids > 0 then
    local score = redis.call('ZSCORE', index, ids[1]) -- all have the same
    for _, found in ipairs(ids) do
      pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = found, score
    end
  end
  return pairs_
end

local function ids_between(index, low, high, reversed, limit)
  if reversed then
    return redis.call('ZRANGE', index, high, low, 'BYSCORE', 'REV', 'LIMIT', 0, limit, 'WITHSCORES')
  end
  return redis.call('ZRANGE', index, low, high, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
end

for at = last + 1, #KEYS do
  local first = 6 * (at - last - 1) + 2
  local low, high, limit, after, reversed, counts = unpack(ARGV, first, first + 5)
  local answer
  if counts == '1' then
    answer = redis.call('ZCOUNT', KEYS[at], low, high)
  elseif after ~= '' then
    answer = ids_behind(KEYS[at], after, reversed == '1', limit)
  else
    answer = ids_between(KEYS[at], low, high, reversed == '1', limit)
  end
  scans[#scans + 1] = answer
end

local now = redis.call('TIME')
return { now[1], now[2], redis.call('GET', KEYS[1]) or '0', rows, scans }
