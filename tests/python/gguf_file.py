"""The checkpoint of llama2.c's stories260K as a GGUF file that llama.cpp reads: same weights, same tokenizer."""
import struct

_U32, _F32, _STRING, _ARRAY, _I32 = 4, 6, 8, 9, 5


def _string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def _pair(key, kind, value):
    if kind == _STRING:
        return _string(key) + struct.pack("<I", kind) + _string(value)
    if isinstance(value, list):
        pack = {_STRING: _string, _F32: lambda v: struct.pack("<f", v), _I32: lambda v: struct.pack("<i", v)}[kind]
        return _string(key) + struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(map(pack, value))
    return _string(key) + struct.pack("<I", kind) + struct.pack("<f" if kind == _F32 else "<I", value)


def _strings(key, values):
    return _string(key) + struct.pack("<IIQ", _ARRAY, _STRING, len(values)) + b"".join(map(_string, values))


def _tokenizer(path, n_vocab):
    with open(path, "rb") as file:
        file.read(4)
        pieces = []
        for _ in range(n_vocab):
            score, length = struct.unpack("<fi", file.read(8))
            pieces.append((score, file.read(length)))
    texts, scores, kinds = [], [], []
    for i, (score, text) in enumerate(pieces):
        byte = len(text) == 6 and text.startswith(b"<0x")
        special = {0: (b"<unk>", 2), 1: (b"<s>", 3), 2: (b"</s>", 3)}.get(i)
        texts.append(special[0] if special else text if byte else text.replace(b" ", "\u2581".encode()))
        scores.append(score)
        kinds.append(special[1] if special else 6 if byte else 1)
    return texts, scores, kinds


def write(model, tokenizer, path):
    """Of the files stories260K.bin and tok512.bin (or others of their format with a tied classifier) make the GGUF ``path``."""
    import numpy
    data = model.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocab, context = struct.unpack("<7i", data[:28])
    values, at = numpy.frombuffer(data[28:], "<f4"), 0

    def take(*shape):
        nonlocal at
        n = int(numpy.prod(shape))
        at += n
        return values[at - n:at].reshape(shape)

    kv = dim // heads * kv_heads
    tensors = {"token_embd.weight": take(vocab, dim)}
    parts = [("attn_norm", (dim,)), ("attn_q", (dim, dim)), ("attn_k", (kv, dim)), ("attn_v", (kv, dim)),
             ("attn_output", (dim, dim)), ("ffn_norm", (dim,)), ("ffn_gate", (hidden, dim)), ("ffn_down", (dim, hidden)),
             ("ffn_up", (hidden, dim))]
    for name, shape in parts:
        for i, values_of in enumerate(take(layers, *shape)):
            tensors[f"blk.{i}.{name}.weight"] = values_of
    tensors["output_norm.weight"] = take(dim)
    texts, scores, kinds = _tokenizer(tokenizer, vocab)
    meta = [
        _pair("general.architecture", _STRING, "llama"), _pair("general.name", _STRING, model.stem),
        _pair("general.alignment", _U32, 32), _pair("llama.context_length", _U32, context),
        _pair("llama.embedding_length", _U32, dim), _pair("llama.block_count", _U32, layers),
        _pair("llama.feed_forward_length", _U32, hidden), _pair("llama.attention.head_count", _U32, heads),
        _pair("llama.attention.head_count_kv", _U32, kv_heads), _pair("llama.rope.dimension_count", _U32, dim // heads),
        _pair("llama.attention.layer_norm_rms_epsilon", _F32, 1e-5), _pair("llama.vocab_size", _U32, vocab),
        _pair("tokenizer.ggml.model", _STRING, "llama"), _strings("tokenizer.ggml.tokens", texts),
        _pair("tokenizer.ggml.scores", _F32, scores), _pair("tokenizer.ggml.token_type", _I32, kinds),
        _pair("tokenizer.ggml.bos_token_id", _U32, 1), _pair("tokenizer.ggml.eos_token_id", _U32, 2),
        _pair("tokenizer.ggml.unknown_token_id", _U32, 0)]
    infos, body = b"", b""
    for name, tensor in tensors.items():
        infos += _string(name) + struct.pack("<I", tensor.ndim) + struct.pack(f"<{tensor.ndim}Q", *reversed(tensor.shape))
        infos += struct.pack("<IQ", 0, len(body))
        body += tensor.tobytes()
        body += b"\0" * (-len(body) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)) + b"".join(meta) + infos
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)
