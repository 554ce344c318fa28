/* first.c - a first program: one sequence through the pool, with or without a daemon.  cc first.c -lkvpool */
#include <kvpool.h>
#include <stdio.h>

#define N 100

int main(void)
{
	struct kvp_client *client;
	struct kvp_ns *ns;
	struct kvp_seq *seq;
	struct kvp_desc desc;
	uint32_t tokens[N];

	for (uint32_t i = 0; i < N; i++)
		tokens[i] = i;
	kvp_desc_init(&desc, KVP_LAYOUT_HND, 16, 2, 1, 8, KVP_TYPE_F32); /* 16 tokens a block, 2 layers, 1 head of 8 */
	desc.model[0] = 1; /* in earnest: a hash of the weights */
	if (kvp_open(NULL, &client) < 0 ||
		kvp_ns_open(client, &(struct kvp_ns_opts){.size = sizeof(struct kvp_ns_opts), .name = "first",
			.owner_uid = KVP_UID_SELF, .desc = &desc}, &ns) < 0 || kvp_seq_open(ns, NULL, &seq) < 0) {
		fprintf(stderr, "first: %s\n", kvp_error(NULL));
		return 1;
	}
	int64_t have = kvp_seq_match(seq, tokens, N, kvp_deadline_ms(1000)); /* these need not be computed */
	if (have < 0 || kvp_seq_append(seq, tokens + have, N - have) < 0) {
		fprintf(stderr, "first: %s\n", kvp_error(client));
		return 1;
	}
	for (uint64_t pos = have; pos < N; pos++)
		for (uint32_t layer = 0; layer < 2; layer++)
			for (int which = KVP_K; which <= KVP_V; which++) {
				float *row = kvp_seq_row(seq, layer, which, 0, pos);
				for (int i = 0; i < 8; i++)
					row[i] = tokens[pos] + layer; /* in earnest: what the model computes */
			}
	kvp_seq_commit(seq, N); /* from now on others find the full blocks */
	int attached = kvp_state(client, NULL) == KVP_ATTACHED;
	printf("%s: %d of %d tokens reused\n", attached ? "attached" : "without the pool", (int)have, N);
	if (!attached)
		fprintf(stderr, "first: %s\n", kvp_error(client)); /* why: no daemon, or one that refuses us */
	kvp_seq_close(seq);
	kvp_ns_close(ns);
	kvp_close(client);
	return 0;
}
