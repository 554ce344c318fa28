#!/usr/bin/env bash
# kvpool-test: timeout=300
# Engines and the daemon killed at random under load: no wrong byte, nothing leaked. `make kills` does many more.
exec "$(dirname "$0")/kills" "${KILLS_CLIENTS:-150}" "${KILLS_DAEMONS:-6}"
