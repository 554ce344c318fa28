/*
 * model.h - a Llama-architecture checkpoint, read whole into memory laid out for rowmath
 *
 * Two formats, told apart by the first bytes:
 * - kvpool's own (tests/data/model/README.md): 64-byte header that starts with "KVPMODEL", then f16 arrays;
 * - llama2.c's: seven int32, then f32 arrays.
 * The file is foreign bytes: every size in it is bounded and the file's length must fit to the byte before any is used.
 */
#ifndef KVENGINE_MODEL_H
#define KVENGINE_MODEL_H

#include <stdint.h>

#include "error.h"
#include "rowmath.h"

#define MODEL_MAGIC "KVPMODEL"
#define MODEL_HEADER_BYTES 64
#define MODEL_LAYERS_MAX 128

struct model_layer {
	float *norm_attn, *norm_ffn; /* [dim] */
	struct matrix q, k, v, o;
	struct matrix gate, down, up;
};

struct model {
	uint32_t dim, hidden, n_layers, n_heads, n_kv_heads, head_dim, n_vocab, context;
	float rope_base, norm_eps;
	uint8_t fingerprint[32]; /* BLAKE2b of the whole file */
	float *embedding; /* [n_vocab][dim] */
	float *norm_final; /* [dim] */
	struct matrix classifier; /* the embedding again, unless the checkpoint has its own */
	struct model_layer *layers;
};

/**
 * model_open() - read a checkpoint
 * Return: 0; -EINVAL not a checkpoint, cut short, or a shape out of bounds; -ENOMEM; -errno of the file.
 */
int model_open(struct model *model, const char *path, struct error *error);

/** model_close() - may run twice */
void model_close(struct model *model);

#endif
