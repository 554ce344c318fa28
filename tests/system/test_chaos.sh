#!/usr/bin/env bash
# kvpool-test: timeout=420
# Faults of every kind at random for a moment, or for CHAOS_SECONDS. `make chaos DURATION=3600` does it for an hour.
exec "$(dirname "$0")/chaos" "${CHAOS_SECONDS:-20}"
