#!/usr/bin/env bash
# kvpool-test: static timeout=600
# The wall clock jumps by a day, forward and back: kvpoold and engines go by the one that does not.
exec "$(dirname "$0")/clock"
