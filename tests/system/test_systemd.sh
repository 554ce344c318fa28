#!/usr/bin/env bash
# kvpool-test: parallel static
# The units are right as systemd reads them after an installation, and the service is shut in.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not installed"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
# verify wants the programs where ExecStart= says
sed "s|/usr/local/sbin/kvpoold|${BUILD:-$top/build}/kvpoold|" "$top/systemd/kvpoold.service" >kvpoold.service
sed "s|/usr/local/bin/kvpool-exporter|${BUILD:-$top/build}/kvpool-exporter|" "$top/systemd/kvpool-exporter.service" >kvpool-exporter.service
sed "s|/usr/local/bin/kvpool-cold|${BUILD:-$top/build}/kvpool-cold|" "$top/systemd/kvpool-cold@.service" >kvpool-cold@root.service
cp "$top"/systemd/*.socket .
for unit in kvpoold.service kvpool-exporter.service kvpool-cold@root.service kvpoold.socket kvpoold-admin.socket; do
	said=$(systemd-analyze verify --man=no "./$unit" 2>&1) || { echo "$unit: $said"; exit 1; }
	[ -z "$said" ] || { echo "$unit: $said"; exit 1; }     # unknown keys are mere warnings there
done
# 15: an exposure of 1.5
for unit in kvpoold.service kvpool-exporter.service kvpool-cold@root.service; do
	systemd-analyze security --offline=true --threshold=15 --no-pager ./$unit >security || { cat security; exit 1; }
	tail -n 2 security
done
grep -q '^PrivateUsers=' kvpoold.service && { echo "PrivateUsers= would hide who the clients are"; exit 1; }
# the example configuration is one that kvpoold takes, its commented lines too: what it refuses is the flag after it
daemon=${BUILD:-$top/build}/kvpoold
sed -e 's|^# \([a-z-]* = .*\)|\1|' "$top/systemd/kvpoold.conf" >conf
"$daemon" --config "$dir/conf" --io nonsense 2>said && { echo "--io nonsense was taken"; exit 1; }
grep -q 'io = "nonsense"' said || { cat said; exit 1; }
echo "units and example configuration are right"
