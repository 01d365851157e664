-- Write each change whose rows all are as they were read, and say which ones were written.
--
-- KEYS: the sequence, the counter, the answer to the last question of this session, then rows and
--       indexes.
-- ARGV: the number of the question; a JSON list with for each change 1 if it is news, how many rows
--       and how many index entries it has; for each row its key's position, the version that was
--       read ("": none) and "=" to compare only, "-" to delete, or its text; for each entry its
--       key's position, the id, and the score, or "" to remove it. Versions and scores are texts,
--       since Lua would round them.
-- Returns a "1" or "0" for each change.
--
-- A question that was answered gets the same answer, which is kept for a minute: a client whose
-- connection broke asks again. The first write is a SET, which the server refuses where it must not
-- write at all; after it, none is refused.
local MINUTE = 60000
local DIGITS = 16 -- of a version; it is the start of a row
local sequence, counter, answer_key = KEYS[1], KEYS[2], KEYS[3]
local question = ARGV[1] .. ':'

local answer = redis.call('GET', answer_key)
if answer and string.sub(answer, 1, #question) == question then
  redis.call('SET', answer_key, answer, 'PX', MINUTE) -- so that WAIT waits for what was written before
  return string.sub(answer, #question + 1)
end

-- A version is later than all others, also where a fail-over has lost the sequence.
local version
local function next_version()
  if version == nil then
    local now = redis.call('TIME')
    local last = tonumber(redis.call('GET', sequence) or '0')
    version = string.format('%016.0f', math.max(last + 1, now[1] * 1000000 + now[2]))
    redis.call('SET', sequence, version)
  end
  return version
end

local words = cjson.decode(ARGV[2])
local at, news, written = 1, 0, {}
while at <= #words do
  local is_news, rows, entries = words[at], words[at + 1], words[at + 2]
  local first_entry = at + 3 + 3 * rows
  local after = first_entry + 3 * entries
  local is_unchanged = true
  for row = at + 3, first_entry - 1, 3 do
    if redis.call('GETRANGE', KEYS[words[row]], 0, DIGITS - 1) ~= words[row + 1] then
      is_unchanged = false
      break
    end
  end
  if is_unchanged then
    next_version()
    for row = at + 3, first_entry - 1, 3 do
      local key, text = KEYS[words[row]], words[row + 2]
      if text == '-' then
        redis.call('DEL', key)
      elseif text ~= '=' then
        redis.call('SET', key, version .. text)
      end
    end
    for entry = first_entry, after - 1, 3 do
      local key, id, score = KEYS[words[entry]], words[entry + 1], words[entry + 2]
      if score == '' then
        redis.call('ZREM', key, id)
      else
        redis.call('ZADD', key, score, id)
      end
    end
    news = news + is_news
  end
  written[#written + 1] = is_unchanged and '1' or '0'
  at = after
end

if news > 0 then
  redis.call('SET', counter, (redis.call('GET', counter) or 0) + news)
end
answer = table.concat(written)
redis.call('SET', answer_key, question .. answer, 'PX', MINUTE)
return answer
