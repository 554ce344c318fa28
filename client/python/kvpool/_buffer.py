"""Addresses of other people's memory: anything with the buffer protocol, or a CPU tensor.  Inside the package only."""
from __future__ import annotations

import ctypes as c
from array import array
from typing import Any, Tuple


class _PyBuffer(c.Structure):
    """Py_buffer of CPython's limited API: the same since 3.3."""

    _fields_ = [("buf", c.c_void_p), ("obj", c.py_object), ("len", c.c_ssize_t), ("itemsize", c.c_ssize_t),
                ("readonly", c.c_int), ("ndim", c.c_int), ("format", c.c_char_p), ("shape", c.c_void_p),
                ("strides", c.c_void_p), ("suboffsets", c.c_void_p), ("internal", c.c_void_p)]


_SIMPLE, _WRITABLE = 0, 1
_get = c.pythonapi.PyObject_GetBuffer
_get.argtypes, _get.restype = [c.py_object, c.POINTER(_PyBuffer), c.c_int], c.c_int
_release = c.pythonapi.PyBuffer_Release
_release.argtypes, _release.restype = [c.POINTER(_PyBuffer)], None


class Memory:
    """Address and length of ``source``, which can neither go nor be resized while this object lives."""

    def __init__(self, source: Any, writable: bool):
        self._buffer, self._source = None, source
        if hasattr(source, "data_ptr"):  # torch.Tensor, without torch
            if source.device.type != "cpu":
                raise ValueError(f"a tensor on {source.device}: only memory of the host can be read and written")
            if not source.is_contiguous():
                raise ValueError("a tensor that is not contiguous: call .contiguous(), or pass its parts")
            self.address, self.length = source.data_ptr(), source.numel() * source.element_size()
            return
        buffer = _PyBuffer()
        _get(source, buffer, _WRITABLE if writable else _SIMPLE)  # raises BufferError or TypeError itself
        self._buffer = buffer
        self.address, self.length = buffer.buf or 0, buffer.len

    def __del__(self, release: Any = _release) -> None:
        if self._buffer is not None:
            release(self._buffer)


def token_memory(tokens: Any) -> Tuple[Any, int, int]:
    """(object to keep alive, address, number) of tokens as uint32; 4-byte integers in a buffer are not copied."""
    try:
        view = memoryview(tokens)
        plain = view.contiguous and view.ndim == 1 and view.itemsize == 4 and view.format in ("I", "i", "L", "l", "<I", "<i")
    except TypeError:
        plain = False
    if not plain:
        tokens = array("I", tokens.tolist() if hasattr(tokens, "tolist") else tokens)
        view = memoryview(tokens)
    memory = Memory(tokens, False)
    return memory, memory.address, len(view)
