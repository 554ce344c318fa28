#!/usr/bin/env bash
# kvpool-test: static timeout=600
# Other minor versions of kvpoold and of the library, side by side and one after the other, under load.
exec "$(dirname "$0")/rolling"
