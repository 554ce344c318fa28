/*
 * prompt.cpp - a small llama.cpp program on the pool: what another process has computed of a prompt is loaded
 *
 *	prompt MODEL.gguf [-n TOKENS] [-s SOCKET] <PROMPT
 *
 * An example, for who drives libllama from C or C++: only public calls of llama.h and kvpool.h.  Chunks of 64 tokens are
 * stored as llama.cpp writes the state of a sequence.  They come and go through a second sequence of the context: copying
 * between sequences of one unified cache moves no bytes.  Build:
 *
 *	g++ -O2 prompt.cpp -o prompt -lllama -lggml -lggml-base -lkvpool
 */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include <kvpool.h>
#include <llama.h>

namespace
{

constexpr uint32_t chunk_tokens = 64;
constexpr llama_seq_id own = 0, scratch = 1;

/* A hash of the file, so that no other model's chunks are taken for this one's. An engine hashes large files once and keeps it. */
void fingerprint(const char *path, uint8_t out[32])
{
	std::ifstream file(path, std::ios::binary);
	std::vector<char> piece(1 << 20);
	uint64_t hash[4] = {0xcbf29ce484222325ull, 0x84222325cbf29ce4ull, 0x9ae16a3b2f90404full, 0xc3a5c85c97cb3127ull};

	while (file.read(piece.data(), (std::streamsize)piece.size()) || file.gcount())
		for (std::streamsize i = 0; i < file.gcount(); i++)
			hash[i & 3] = (hash[i & 3] ^ (uint8_t)piece[(size_t)i]) * 0x100000001b3ull;
	memcpy(out, hash, 32);
}

/* The size of a chunk's state grows evenly with its tokens, so two of them tell. */
size_t measure(llama_context *ctx)
{
	llama_token token = std::max(0, llama_vocab_bos(llama_model_get_vocab(llama_get_model(ctx))));
	size_t sizes[2] = {0, 0};

	for (size_t &size : sizes) {
		llama_decode(ctx, llama_batch_get_one(&token, 1));
		size = llama_state_seq_get_size(ctx, own);
	}
	llama_memory_clear(llama_get_memory(ctx), false);
	return sizes[0] + (sizes[1] - sizes[0]) * (chunk_tokens - 1);
}

kvp_ns *open_namespace(kvp_client *client, llama_context *ctx, const char *model)
{
	kvp_desc desc;
	kvp_ns_opts opts = {};
	kvp_ns *ns = nullptr;

	kvp_desc_init(&desc, KVP_LAYOUT_OPAQUE, chunk_tokens, 0, 0, 0, 0);
	desc.block_bytes = measure(ctx);
	fingerprint(model, desc.model);
	/* what the bytes depend on beside the model: version, types of K and V, attention */
	snprintf(desc.engine, sizeof(desc.engine), "llama.cpp-state/%s/example", llama_version());
	opts.size = sizeof(opts);
	opts.name = "llama.cpp-example";
	opts.desc = &desc;
	opts.owner_uid = KVP_UID_SELF;
	if (kvp_ns_open(client, &opts, &ns) < 0) {
		fprintf(stderr, "%s\n", kvp_error(client));
		exit(1);
	}
	return ns;
}

/* Load the leading chunks that are there. Return: tokens that need no computing. */
uint32_t restore(llama_context *ctx, kvp_ns *ns, const std::vector<kvp_key> &keys)
{
	llama_memory_t memory = llama_get_memory(ctx);
	std::vector<kvp_view> views(keys.size());
	int64_t n = kvp_acquire(ns, keys.data(), (uint32_t)keys.size(), 0, kvp_deadline_ms(1000), views.data());
	uint32_t done = 0;

	for (int64_t i = 0; i < n; i++) {
		llama_pos start = (llama_pos)(i * chunk_tokens), end = start + (llama_pos)chunk_tokens;

		if (llama_state_seq_set_data(ctx, (const uint8_t *)views[i].data, views[i].used_bytes, scratch) == 0 ||
			llama_memory_seq_pos_min(memory, scratch) != start ||
			llama_memory_seq_pos_max(memory, scratch) != end - 1 || kvp_lost(&views[i], 1))
			break;
		llama_memory_seq_cp(memory, scratch, own, start, end);
		llama_memory_seq_rm(memory, scratch, -1, -1);
		done = (uint32_t)end;
	}
	llama_memory_seq_rm(memory, scratch, -1, -1);
	if (n > 0)
		kvp_release(views.data(), (uint32_t)n);
	return done;
}

/* Store the chunks from @first on, straight into the pool's memory. */
void publish(llama_context *ctx, kvp_ns *ns, const std::vector<kvp_key> &keys, size_t first)
{
	llama_memory_t memory = llama_get_memory(ctx);

	for (size_t i = first; i < keys.size(); i++) {
		llama_pos start = (llama_pos)(i * chunk_tokens);
		kvp_block_ref block;
		kvp_publish_item item = {};
		uint8_t result = 0;

		if (kvp_reserve(ns, 1, 0, kvp_deadline_ms(200), &block) != 1)
			return;
		llama_memory_seq_cp(memory, own, scratch, start, start + (llama_pos)chunk_tokens);
		item.key = keys[i];
		if (i)
			item.parent = keys[i - 1];
		item.block = &block;
		item.used_tokens = chunk_tokens;
		item.used_bytes = llama_state_seq_get_data(
			ctx, (uint8_t *)block.data, llama_state_seq_get_size(ctx, scratch), scratch);
		llama_memory_seq_rm(memory, scratch, -1, -1);
		if (item.used_bytes)
			kvp_publish(ns, &item, 1, &result);
		kvp_abandon(&block, 1); /* unless it was used up */
		if (result != KVP_PUB_STORED && result != KVP_PUB_EXISTS)
			return;
	}
}

bool compute(llama_context *ctx, std::vector<llama_token> &tokens, size_t from)
{
	for (size_t at = from; at < tokens.size(); at += 512) {
		int32_t n = (int32_t)std::min<size_t>(512, tokens.size() - at);

		if (llama_decode(ctx, llama_batch_get_one(&tokens[at], n)) != 0)
			return false;
	}
	return true;
}

llama_token most_likely(llama_context *ctx, const llama_vocab *vocab)
{
	const float *logits = llama_get_logits_ith(ctx, -1);

	return (llama_token)(std::max_element(logits, logits + llama_vocab_n_tokens(vocab)) - logits);
}

} // namespace

int main(int argc, char **argv)
{
	const char *path = argc > 1 ? argv[1] : nullptr;
	kvp_open_opts opts = {};
	int n_predict = 32;

	for (int i = 2; i + 1 < argc; i += 2)
		if (!strcmp(argv[i], "-n"))
			n_predict = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "-s"))
			opts.socket = argv[i + 1];
	if (!path) {
		fprintf(stderr, "usage: prompt MODEL.gguf [-n TOKENS] [-s SOCKET] <PROMPT\n");
		return 2;
	}
	llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
	llama_backend_init();
	ggml_backend_load_all();
	llama_model *model = llama_model_load_from_file(path, llama_model_default_params());
	if (!model) {
		fprintf(stderr, "%s: not a model llama.cpp can load\n", path);
		return 1;
	}
	const llama_vocab *vocab = llama_model_get_vocab(model);
	std::string text((std::istreambuf_iterator<char>(std::cin)), {});
	std::vector<llama_token> tokens(text.size() + 8);
	int n = llama_tokenize(vocab, text.data(), (int32_t)text.size(), tokens.data(), (int32_t)tokens.size(), true, false);
	tokens.resize((size_t)std::max(n, 0));
	if (tokens.empty()) {
		fprintf(stderr, "an empty prompt\n");
		return 1;
	}

	llama_context_params params = llama_context_default_params();
	params.n_ctx = (uint32_t)(tokens.size() + (size_t)n_predict + chunk_tokens);
	params.n_batch = 512;
	params.n_seq_max = 2; /* the second one for chunks that come and go */
	params.kv_unified = true; /* copying between sequences moves no bytes */
	params.swa_full = true; /* what left a sliding window can be stored too */
	llama_context *ctx = llama_init_from_model(model, params);
	kvp_client *client = nullptr;
	opts.size = sizeof(opts);
	if (!ctx || kvp_open(&opts, &client) < 0)
		return 1;
	kvp_ns *ns = open_namespace(client, ctx, path);
	std::vector<kvp_key> keys((tokens.size() - 1) / chunk_tokens); /* one token at least is computed */
	kvp_hash_chain(ns, nullptr, (const uint32_t *)tokens.data(), keys.size() * chunk_tokens, nullptr, 0, keys.data());

	auto began = std::chrono::steady_clock::now();
	uint32_t reused = keys.empty() ? 0 : restore(ctx, ns, keys);
	if (!compute(ctx, tokens, reused))
		return 1;
	llama_token token = most_likely(ctx, vocab);
	double first_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
	publish(ctx, ns, keys, reused / chunk_tokens);
	printf("%zu tokens, %u from the pool, first token after %.1f ms\nids:", tokens.size(), reused, first_ms);
	for (int i = 0; i < n_predict && !llama_vocab_is_eog(vocab, token); i++) {
		printf(" %d", token);
		if (llama_decode(ctx, llama_batch_get_one(&token, 1)) != 0)
			break;
		token = most_likely(ctx, vocab);
	}
	printf("\n");

	kvp_ns_close(ns);
	kvp_close(client);
	llama_free(ctx);
	llama_model_free(model);
	return 0;
}
