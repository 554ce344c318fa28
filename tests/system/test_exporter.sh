#!/usr/bin/env bash
# kvpool-test: parallel static timeout=120
# The exporter tells every counter, in a format a scraper reads, with the daemon serving, dead and gone; bad and slow askers
# disturb nobody; and what the alert rules name exists.
name=exporter-$$
. "$(dirname "$0")/pool.sh"
exporter=
trap '[ -z "$exporter" ] || kill -9 $exporter 2>/dev/null || :; pool_end KILL' EXIT
mkdir "$dir/spill"
pool_start --pool 16M --spill "$dir/spill:64M"
# an engine was here
cc -I"$top/include" "$top/tests/data/first.c" -L"$build" -lkvpool -Wl,-rpath,"$build" -o "$dir/first"
"$dir/first" >/dev/null && "$dir/first" >/dev/null
"$build/kvpool-exporter" --help | grep -q -- '--listen ADDRESS:PORT'
status=0; "$build/kvpool-exporter" metrics 2>"$dir/said" || status=$?
[ "$status" = 2 ] && grep -q 'unexpected argument metrics' "$dir/said"
status=0; "$build/kvpool-exporter" --lisen 127.0.0.1:0 2>"$dir/said" || status=$?
[ "$status" = 2 ] && grep -q '^kvpool-exporter: unknown option --lisen; kvpool-exporter --help lists them$' "$dir/said"
status=0; "$build/kvpool-exporter" --listen 2>"$dir/said" || status=$?
[ "$status" = 2 ] && grep -q '^kvpool-exporter: --listen needs a value; kvpool-exporter --help lists them$' "$dir/said"
for wrong in nonsense :1 127.0.0.1: 127.0.0.1:99999 localhost:80 '[::1:80' '[nonsense]:80'; do
	"$build/kvpool-exporter" --listen "$wrong" 2>"$dir/said" && { echo "--listen $wrong was taken"; exit 1; }
	grep -q -- --listen "$dir/said"
done
"$build/kvpool-exporter" --listen 127.0.0.1:0 >"$dir/port" 2>"$dir/said" &
exporter=$!
for _ in $(seq 200); do grep -q port "$dir/port" && break; sleep 0.05; done
port=$(sed -n 's/^listening on port //p' "$dir/port")
"$build/kvpool-exporter" --listen "127.0.0.1:$port" 2>"$dir/taken" && { echo "a port was taken twice"; exit 1; }
grep -q 'cannot listen' "$dir/taken"
cat >"$dir/look.py" <<'P'
import http.client, re, socket, sys, time
port, what = int(sys.argv[1]), sys.argv[2]

def ask(path="/metrics", method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode("ascii"), answer.getheader("Content-Type")

def metrics():
    """All series, each of a family that has HELP and TYPE before it, none twice."""
    status, text, kind = ask()
    assert status == 200 and kind.startswith("text/plain; version=0.0.4"), (status, kind)
    types, helps, series = {}, set(), {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helps.add(line.split()[2])
        elif line.startswith("# TYPE "):
            _, _, family, kind = line.split()
            assert family in helps and family not in types and kind in ("counter", "gauge"), line
            assert (kind == "counter") == family.endswith("_total"), line
            types[family] = kind
        else:
            found = re.fullmatch(r'([a-z_]+)((?:\{(?:[a-z]+="(?:[^"\\]|\\.)*",?)+\})?) (-?[0-9.e+]+)', line)
            assert found, line
            assert found[1] in types, line
            assert found[1] + found[2] not in series, line
            series[found[1] + found[2]] = float(found[3])
    return types, series

if what == "serving":
    types, series = metrics()
    assert series["kvpool_up"] == 1 and series["kvpool_starts_total"] == 1 and series["kvpool_pool_bytes"] == 16 << 20
    for line in open(sys.argv[3] + "/include/counters.def"):
        found = re.match(r"KVP_(NS_)?COUNTER\((\w+), (\w+),", line)
        if found:
            family = "kvpool_" + ("namespace_" if found[1] else "") + found[2] + ("_total" if found[3] == "COUNTER" else "")
            assert family in types, family
    assert any(name.startswith("kvpool_store_state{store=") for name in series)
    stored = [name for name in series if name.startswith("kvpool_namespace_stored_total{ns=")]
    assert len(stored) == 1 and series[stored[0]] > 0, stored
    labels = stored[0][len("kvpool_namespace_stored_total{"):-1]
    for reason in ("never", "evicted", "sibling", "damaged", "tier", "cost"):
        assert series["kvpool_namespace_misses_total{%s,reason=\"%s\"}" % (labels, reason)] == series["kvpool_namespace_miss_%s_total{%s}" % (reason, labels)]
    rules, named = open(sys.argv[3] + "/systemd/kvpool.rules.yml").read(), set()
    for line in re.findall(r"^ *expr: (.*)$", rules, re.M):
        named |= set(re.findall(r"kvpool_\w+", line))
    assert len(named) > 15, named
    assert not named - set(types), named - set(types)
    runbook = open(sys.argv[3] + "/systemd/RUNBOOK.md").read().lower()
    alerts = re.findall(r"alert: ", rules)
    chapters = re.findall(r'runbook: "RUNBOOK.md: (.*)"', rules)
    assert len(alerts) == len(chapters) > 10
    for chapter in chapters:
        assert "\n## " + chapter + "\n" in runbook, chapter
    assert ask("/")[0] == 200 and ask("/other")[0] == 404 and ask("/metrics", "POST")[0] == 405
    status, text, _ = ask("/metrics", "HEAD")
    assert status == 200 and text == ""
    # who sends rubbish, half a request or nothing at all holds nobody up
    idle = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(3)]
    idle[0].sendall(b"GET /metr")
    for rubbish in (b"\0\1\2\3\r\n\r\n", b"GET\r\n\r\n", b"GET /metrics HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
                    b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), 10) as s:
            s.settimeout(30)
            try:
                s.sendall(rubbish)
                first = s.recv(100)
            except OSError:
                first = b""
            assert not first.startswith(b"HTTP/1.1 200"), (rubbish[:20], first)
        assert metrics()[1]["kvpool_up"] == 1
    # as many as there may be, and it serves again when they have gone
    many = []
    for _ in range(40):
        try:
            many.append(socket.create_connection(("127.0.0.1", port), 10))
        except OSError:
            pass
    for s in many + idle:
        s.close()
    for _ in range(300):
        try:
            if metrics()[1]["kvpool_up"] == 1:
                break
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.1)
    else:
        raise AssertionError("nothing is served after many connections")
elif what == "dead":
    types, series = metrics()
    assert series["kvpool_up"] == 0 and series["kvpool_pool_bytes"] == 16 << 20
elif what == "gone":
    assert metrics()[1] == {"kvpool_up": 0}
P
look() { /usr/bin/python3 "$dir/look.py" "$port" "$1" "$top"; }
look serving
kill -9 $daemon
wait $daemon 2>/dev/null || :
look dead
"$build/kvctl" purge --name $name >/dev/null
daemon=
look gone
look gone
[ "$(wc -l <"$dir/said")" -le 2 ] || { echo "the same is said with each scrape:"; cat "$dir/said"; exit 1; }
kill -TERM $exporter
wait $exporter
exporter=
if command -v promtool >/dev/null; then promtool check rules "$top/systemd/kvpool.rules.yml"; fi
echo "tells what there is to whoever asks in order"
