"""The package's structs are those of the headers: each size and offset by a C compiler's word."""
import ctypes
import re
import shutil
import subprocess

import pytest

from conftest import TOP
from kvpool import _lib, attention

STRUCTS = {
    "kvp_key": _lib.Key, "kvp_layer": _lib.Layer, "kvp_desc": _lib.Desc, "kvp_open_opts": _lib.OpenOpts,
    "kvp_counts": _lib.Counts, "kvp_ns_opts": _lib.NsOpts, "kvp_ns_info": _lib.NsInfo, "kvp_match_part": _lib.MatchPart,
    "kvp_view": _lib.View, "kvp_block_ref": _lib.BlockRef, "kvp_publish_item": _lib.PublishItem, "iovec": _lib.IoVec,
    "kvp_io": _lib.Io, "kvp_completion": _lib.Completion, "kvp_queue_opts": _lib.QueueOpts,
    "kvp_stats_of": _lib.StatsOf, "kvp_event": _lib.Event, "kvp_seq_opts": _lib.SeqOpts, "kvp_seq_stats": _lib.SeqStats, "kvattn_geom": _lib.Geom, "kvattn_table": _lib.Table,
    "kvattn_seq": attention._Seq, "kvattn_opts": attention._Opts,
}


def test_each_struct_has_the_headers_fields_at_their_places(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler")
    lines = ["#include <stdio.h>", "#include <sys/uio.h>", '#include "kvpool.h"', '#include "kvattn.h"', "int main(void) {"]
    want = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("%zu\\n", sizeof(struct {name}));')
        want.append((name, "size", ctypes.sizeof(struct)))
        for field, *_ in struct._fields_:
            lines.append(f'printf("%zu\\n", offsetof(struct {name}, {field}));')
            want.append((name, field, getattr(struct, field).offset))
    (tmp_path / "sizes.c").write_text("\n".join(lines + ["}"]))
    subprocess.run([compiler, "-I", str(TOP / "include"), "-o", str(tmp_path / "sizes"), str(tmp_path / "sizes.c")], check=True)
    got = subprocess.run([str(tmp_path / "sizes")], capture_output=True, text=True, check=True).stdout.split()
    assert [(name, field, int(n)) for (name, field, _), n in zip(want, got)] == want


def test_each_call_is_one_of_the_headers(tmp_path):
    header = (TOP / "include" / "kvpool.h").read_text()
    missing = [name for name in _lib._POOL if not re.search(rf"\b{name}\(", header)]
    assert not missing
