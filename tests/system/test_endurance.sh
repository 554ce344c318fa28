#!/usr/bin/env bash
# kvpool-test: static timeout=600
# The daemon killed as soon as it serves, while engines read small blocks as fast as can be. `make endurance` goes on for a billion reads.
exec "$(dirname "$0")/endurance" "${ENDURANCE_READS:-2000000}" "${ENDURANCE_KILLS:-15}"
