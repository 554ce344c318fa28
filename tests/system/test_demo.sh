#!/usr/bin/env bash
# kvpool-test: timeout=180
# The demo is right: same tokens with the pool, from the spill store, over a killed daemon and without one.
exec "$(dirname "$0")/demo"
