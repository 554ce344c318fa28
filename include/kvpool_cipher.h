/*
 * kvpool_cipher.h - records of a spill store encrypted with a key of the operator's: AES-256-GCM, by libcrypto
 *
 * Every record, and every seal, has a key of its own: BLAKE2b of 32 random bytes that lie beside it, keyed with the
 * operator's. So nothing is counted, and nothing has to be remembered over a power cut, a copied or restored store or a
 * segment used anew: a key and nonce come together a second time only if 32 random bytes do.  Under the record's key
 * the header's box is message 0, the data, or each of its layers, message 1 and on.  The box's tag covers the header
 * before it, which says where in which store the record lies and has the other tags: a record is all as it was written,
 * there, or it is none.
 *
 * Inside kvpool only: the daemon, and kvctl store.  Whoever includes it links libcrypto, libsodium and libxxhash.  A
 * cipher is one thread's.
 */
#ifndef KVPOOL_CIPHER_H
#define KVPOOL_CIPHER_H

#include <fcntl.h>
#include <openssl/evp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvpool_spill.h"

#define SPILL_KEY_BYTES 32u

struct spill_key {
	uint64_t id; /* tells nothing of it */
	uint8_t bytes[SPILL_KEY_BYTES];
};

struct spill_keys {
	unsigned n;
	struct spill_key keys[SPILL_KEYS_MAX]; /* what is written is encrypted with the first one */
};

struct spill_cipher {
	const struct spill_keys *keys;
	EVP_CIPHER *aead;
	EVP_CIPHER_CTX *context;
};

/* ---- keys ---- */

static inline const struct spill_key *spill_key_find(const struct spill_keys *keys, uint64_t id)
{
	for (unsigned i = 0; keys && i < keys->n; i++)
		if (keys->keys[i].id == id)
			return &keys->keys[i];
	return NULL;
}

/* What a key makes of a text: another key, or its id. */
static inline void spill_key_derive(
	const struct spill_key *key, const char label[16], const uint8_t salt[SPILL_SALT], void *out, size_t bytes)
{
	crypto_generichash_state state;

	crypto_generichash_init(&state, key->bytes, sizeof(key->bytes), bytes);
	crypto_generichash_update(&state, (const uint8_t *)label, 16);
	crypto_generichash_update(&state, salt, SPILL_SALT);
	crypto_generichash_final(&state, out, bytes);
	sodium_memzero(&state, sizeof(state));
}

static inline void spill_key_set_id(struct spill_key *key)
{
	static const uint8_t none[SPILL_SALT];
	uint8_t id[16];

	spill_key_derive(key, "kvpool key's id.", none, id, sizeof(id));
	memcpy(&key->id, id, sizeof(key->id));
	key->id = le64toh(key->id);
}

/* The text of a key file. Return: 0; -EINVAL. */
static inline int spill_key_parse(const char *text, size_t n, struct spill_key *key)
{
	static const uint8_t none[SPILL_KEY_BYTES];
	size_t got = 0;

	if (n == SPILL_KEY_BYTES)
		memcpy(key->bytes, text, n);
	else if (n < 2 * SPILL_KEY_BYTES || n > 2 * SPILL_KEY_BYTES + 2 ||
		 sodium_hex2bin(key->bytes, sizeof(key->bytes), text, n, "\r\n", &got, NULL) < 0 ||
		 got != SPILL_KEY_BYTES)
		return -EINVAL;
	if (!sodium_memcmp(key->bytes, none, sizeof(none)))
		return -EINVAL;
	spill_key_set_id(key);
	return 0;
}

/* A credential of systemd is root's, and its mode has the mask of an access list where a group's bits are. */
static inline bool spill_key_is_private(const struct stat *st)
{
	return !(st->st_mode & (S_IRWXO | S_IWGRP | S_IXGRP)) &&
	       (!(st->st_mode & S_IRGRP) || (st->st_uid == 0 && st->st_gid == 0));
}

static inline int spill_key_read_open(int fd, const char *path, uid_t owner, struct spill_key *key, char message[256])
{
	char text[2 * SPILL_KEY_BYTES + 3];
	struct stat st;
	ssize_t n;
	int r;

	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		snprintf(message, 256, "key file %.120s is no plain file: name one", path);
		return -EINVAL;
	}
	if (st.st_uid != 0 && owner != (uid_t)-1 && st.st_uid != owner) {
		snprintf(message, 256,
			"key file %.120s belongs to uid %u, who can change it: chown it to root or to uid %u", path,
			(unsigned)st.st_uid, (unsigned)owner);
		return -EPERM;
	}
	if (!spill_key_is_private(&st)) {
		snprintf(message, 256, "key file %.120s can be read or written by others (mode %04o): chmod 0400 %.60s",
			path, (unsigned)st.st_mode & 07777, path);
		return -EPERM;
	}
	n = read(fd, text, sizeof(text));
	r = n < 0 ? -EIO : spill_key_parse(text, (size_t)n, key);
	sodium_memzero(text, sizeof(text));
	if (r < 0)
		snprintf(message, 256,
			"key file %.80s holds no key: 32 random bytes, or 64 hexadecimal digits of them: head -c 32 /dev/urandom >%.60s",
			path, path);
	return r;
}

/** spill_key_read() - from a file of root's or of @owner's ((uid_t)-1: of anybody's) that nobody else may read.
 *  Return: 0; -errno with @message. */
static inline int spill_key_read(const char *path, uid_t owner, struct spill_key *key, char message[256])
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), r = -errno;

	if (fd < 0) {
		snprintf(message, 256, "cannot open key file %.120s: %s", path, strerror(-r));
		return r;
	}
	r = spill_key_read_open(fd, path, owner, key, message);
	close(fd);
	return r;
}

/** spill_keys_add() - from a file, as the last one. Return: 0; -errno with @message. */
static inline int spill_keys_add(struct spill_keys *keys, const char *path, uid_t owner, char message[256])
{
	struct spill_key *key = &keys->keys[keys->n];
	int r;

	if (keys->n == SPILL_KEYS_MAX) {
		snprintf(message, 256, "key file %.120s is one too many: at most %u", path, SPILL_KEYS_MAX);
		return -E2BIG;
	}
	r = spill_key_read(path, owner, key, message);
	if (r == 0 && spill_key_find(keys, key->id)) {
		snprintf(message, 256, "key file %.120s holds a key that another one has too: leave one of them out",
			path);
		r = -EEXIST;
	}
	keys->n += r == 0;
	return r;
}

/* ---- messages under one record's key ---- */

/** spill_cipher_init() - @keys stay. Return: 0; -ENOMEM: no memory, or no such cipher. */
static inline int spill_cipher_init(struct spill_cipher *cipher, const struct spill_keys *keys)
{
	/* no clearing up at exit: a worker of a hung disk may still be at it then */
	OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
	*cipher = (struct spill_cipher){
		.keys = keys, .aead = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL), .context = EVP_CIPHER_CTX_new()};
	return cipher->aead && cipher->context ? 0 : -ENOMEM;
}

static inline void spill_cipher_deinit(struct spill_cipher *cipher)
{
	EVP_CIPHER_CTX_free(cipher->context); /* and wipes the last key in it */
	EVP_CIPHER_free(cipher->aead);
	*cipher = (struct spill_cipher){.keys = NULL};
}

/* What follows is under the key made of this salt. Return: 0; -ENOKEY; -EIO: libcrypto would not. */
static inline int spill_cipher_begin(
	struct spill_cipher *cipher, uint64_t key_id, const char label[16], const uint8_t salt[SPILL_SALT])
{
	const struct spill_key *key = spill_key_find(cipher->keys, key_id);
	uint8_t own[SPILL_KEY_BYTES];
	int ok;

	if (!key)
		return -ENOKEY;
	spill_key_derive(key, label, salt, own, sizeof(own));
	ok = EVP_CipherInit_ex2(cipher->context, cipher->aead, own, NULL, 1, NULL);
	sodium_memzero(own, sizeof(own));
	return ok == 1 ? 0 : -EIO;
}

/* libcrypto counts in int. */
static inline int spill_cipher_update(struct spill_cipher *cipher, const void *in, uint64_t bytes, void *out)
{
	const uint64_t piece = 1u << 30;

	for (uint64_t at = 0; at < bytes; at += piece) {
		int n = (int)(bytes - at < piece ? bytes - at : piece), got;

		if (EVP_CipherUpdate(
			    cipher->context, out ? (uint8_t *)out + at : NULL, &got, (const uint8_t *)in + at, n) != 1)
			return -EIO;
	}
	return 0;
}

static inline int spill_cipher_start(struct spill_cipher *cipher, uint32_t message, bool encrypt)
{
	uint8_t nonce[12] = {0};

	message = htole32(message);
	memcpy(nonce, &message, sizeof(message));
	return EVP_CipherInit_ex2(cipher->context, NULL, NULL, nonce, encrypt, NULL) == 1 ? 0 : -EIO;
}

/* Message number @message: @in to @out, which may be the same, and its tag, which covers @n_with bytes of @with too. */
static inline int spill_cipher_encrypt(struct spill_cipher *cipher, uint32_t message, const void *with, uint64_t n_with,
	const void *in, uint64_t bytes, void *out, uint8_t tag[SPILL_TAG])
{
	uint8_t rest[16];
	int n;

	if (spill_cipher_start(cipher, message, true) < 0 || spill_cipher_update(cipher, with, n_with, NULL) < 0 ||
		spill_cipher_update(cipher, in, bytes, out) < 0 || EVP_CipherFinal_ex(cipher->context, rest, &n) != 1 ||
		EVP_CIPHER_CTX_ctrl(cipher->context, EVP_CTRL_GCM_GET_TAG, SPILL_TAG, tag) != 1)
		return -EIO;
	return 0;
}

/* Return: 0; -EBADMSG: it is not what was encrypted, and what is in @out is nothing. */
static inline int spill_cipher_decrypt(struct spill_cipher *cipher, uint32_t message, const void *with, uint64_t n_with,
	const void *in, uint64_t bytes, void *out, const uint8_t tag[SPILL_TAG])
{
	uint8_t rest[16], right[SPILL_TAG];
	int n;

	memcpy(right, tag, sizeof(right));
	if (spill_cipher_start(cipher, message, false) < 0 ||
		EVP_CIPHER_CTX_ctrl(cipher->context, EVP_CTRL_GCM_SET_TAG, SPILL_TAG, right) != 1 ||
		spill_cipher_update(cipher, with, n_with, NULL) < 0 || spill_cipher_update(cipher, in, bytes, out) < 0)
		return -EBADMSG;
	return EVP_CipherFinal_ex(cipher->context, rest, &n) == 1 ? 0 : -EBADMSG;
}

/* ---- records ---- */

#define SPILL_LABEL_RECORD "kvpool's record."
#define SPILL_LABEL_SEAL "kvpool's seal..."

static inline int spill_box_encrypt(
	struct spill_cipher *cipher, struct spill_disk_record *disk, const struct spill_record *record)
{
	struct spill_disk_box box = {.ns_id = htole64(record->ns_id), .used_tokens = htole32(record->used_tokens)};

	for (int i = 0; i < 2; i++) {
		box.key[i] = htole64(record->key.w[i]);
		box.parent[i] = htole64(record->parent.w[i]);
	}
	return spill_cipher_encrypt(
		cipher, 0, disk, offsetof(struct spill_disk_record, box), &box, sizeof(box), disk->box, disk->box_tag);
}

/** spill_record_encrypt() - header and data of a record as they are to lie there
 *  @in: its data as spill_data_bytes() has it, which others may be storing to; @out: whole pages, or @in itself
 *  @layers: encrypted each by itself; NULL: all of it is one.  Return: 0; -EIO: neither page nor @out may be written. */
static inline int spill_record_encrypt(struct spill_cipher *cipher, void *page, const struct spill_spot *spot,
	const struct spill_record *record, const struct spill_layers *layers, const void *in, void *out)
{
	const struct spill_layers all = {.n = 1, .ends[0] = spill_data_bytes(record)};
	uint64_t data = spill_data_bytes(record), room = spill_pages(data), at = 0;
	struct spill_record told = *record;
	struct spill_disk_record *disk = page;
	struct spill_hash hash;
	int r;

	layers = layers ? layers : &all;
	told.ns_id = told.used_tokens = 0;
	told.key = told.parent = (struct kvp_key){{0, 0}};
	spill_record_encode(page, spot, &told, (struct spill_hash){{0, 0}});
	spill_page_set_version(page, SPILL_VERSION_ENCRYPTED);
	disk->key_id = htole64(cipher->keys->keys[0].id);
	randombytes_buf(disk->salt, sizeof(disk->salt));
	disk->n_layers = htole32(layers->n);
	r = spill_cipher_begin(cipher, cipher->keys->keys[0].id, SPILL_LABEL_RECORD, disk->salt);
	for (uint32_t i = 0; r == 0 && i < layers->n; at = layers->ends[i++]) {
		disk->layer_hash[i] = htole64(layers->ends[i]);
		r = spill_cipher_encrypt(cipher, i + 1, NULL, 0, (const char *)in + at, layers->ends[i] - at,
			(char *)out + at, disk->tags[i]);
	}
	if (r < 0)
		return r;
	memset((char *)out + data, 0, room - data); /* no byte of memory that is not its own goes to the disk */
	hash = spill_hash_data(out, data);
	for (int i = 0; i < 2; i++)
		disk->data_hash[i] = htole64(hash.w[i]);
	r = spill_box_encrypt(cipher, disk, record);
	spill_page_end(page);
	return r;
}

/* The box of a header that was decoded. */
static inline int spill_box_decrypt(
	struct spill_cipher *cipher, const struct spill_disk_record *disk, struct spill_record *record)
{
	struct spill_disk_box box = {.ns_id = 0}; /* no analyzer sees into libcrypto */
	int r = spill_cipher_begin(cipher, le64toh(disk->key_id), SPILL_LABEL_RECORD, disk->salt);

	if (r == 0)
		r = spill_cipher_decrypt(cipher, 0, disk, offsetof(struct spill_disk_record, box), disk->box,
			sizeof(box), &box, disk->box_tag);
	if (r < 0)
		return -EBADMSG;
	record->ns_id = le64toh(box.ns_id);
	record->used_tokens = le32toh(box.used_tokens);
	for (int i = 0; i < 2; i++) {
		record->key.w[i] = le64toh(box.key[i]);
		record->parent.w[i] = le64toh(box.parent[i]);
	}
	return 0;
}

/**
 * spill_record_open() - what a record's header says, all of it
 * @cipher: of the store; NULL: it has no key
 * In a store with a key only what is encrypted is a record, in one without only what is not: who can write to the drive
 * slips in neither.  Return: 0: the data's parts may be decrypted next; -EBADMSG.
 */
static inline int spill_record_open(struct spill_cipher *cipher, const void *page, const struct spill_spot *spot,
	struct spill_record *record, struct spill_hash *hash)
{
	struct spill_record found;

	if (spill_record_decode(page, spot, &found, hash) < 0 || spill_page_encrypted(page) != (cipher != NULL))
		return -EBADMSG;
	if (cipher && spill_box_decrypt(cipher, page, &found) < 0)
		return -EBADMSG;
	*record = found;
	return 0;
}

/** spill_record_parts_are() - was each of these layers encrypted by itself? Of an encrypted header that was opened. */
static inline bool spill_record_parts_are(const void *page, const struct spill_layers *layers)
{
	const struct spill_disk_record *disk = page;

	if (le32toh(disk->n_layers) != layers->n)
		return false;
	for (uint32_t i = 0; i < layers->n; i++)
		if (le64toh(disk->layer_hash[i]) != layers->ends[i])
			return false;
	return true;
}

/** spill_part_decrypt() - part @i of the data, where it is. Of a header that was opened by this cipher, in any order, each part
 *  once. Return: 0; -EBADMSG: it is nothing now. */
static inline int spill_part_decrypt(struct spill_cipher *cipher, const void *page, void *data, uint32_t i)
{
	const struct spill_disk_record *disk = page;
	uint64_t from = i ? le64toh(disk->layer_hash[i - 1]) : 0;
	char *at = (char *)data + from;
	int r = spill_cipher_begin(cipher, le64toh(disk->key_id), SPILL_LABEL_RECORD, disk->salt);

	return r < 0 ? -EBADMSG
		     : spill_cipher_decrypt(
			       cipher, i + 1, NULL, 0, at, le64toh(disk->layer_hash[i]) - from, at, disk->tags[i]);
}

/** spill_data_decrypt() - all of it */
static inline int spill_data_decrypt(struct spill_cipher *cipher, const void *page, void *data)
{
	const struct spill_disk_record *disk = page;
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < le32toh(disk->n_layers); i++)
		r = spill_part_decrypt(cipher, page, data, i);
	return r;
}

/** spill_record_key_id() - with which an encrypted one is */
static inline uint64_t spill_record_key_id(const void *page)
{
	const struct spill_disk_record *disk = page;

	return le64toh(disk->key_id);
}

/* ---- seals ---- */

/** spill_seal_encrypt() - an encoded seal's @bytes of entries, where they are, with the key of its records.
 *  Return: 0; -ENOKEY, -EIO: nothing of it may be written. */
static inline int spill_seal_encrypt(
	struct spill_cipher *cipher, uint64_t key_id, void *page, void *entries, uint64_t bytes)
{
	struct spill_disk_seal *disk = page;
	struct spill_hash hash;
	int r;

	spill_page_set_version(page, SPILL_VERSION_ENCRYPTED);
	disk->key_id = htole64(key_id);
	randombytes_buf(disk->salt, sizeof(disk->salt));
	/* of what lies there, which is known only when the tag is: the tag does not cover it */
	disk->index_hash[0] = disk->index_hash[1] = 0;
	r = spill_cipher_begin(cipher, key_id, SPILL_LABEL_SEAL, disk->salt);
	if (r == 0)
		r = spill_cipher_encrypt(
			cipher, 0, disk, offsetof(struct spill_disk_seal, tag), entries, bytes, entries, disk->tag);
	hash = spill_hash_data(entries, bytes);
	for (int i = 0; i < 2; i++)
		disk->index_hash[i] = htole64(hash.w[i]);
	spill_page_end(page);
	return r;
}

/** spill_seal_decrypt() - the entries of a seal that was decoded, where they are; @cipher as for spill_record_open() */
static inline int spill_seal_decrypt(struct spill_cipher *cipher, const void *page, void *entries, uint64_t bytes)
{
	struct spill_disk_seal disk;

	if (spill_page_encrypted(page) != (cipher != NULL))
		return -EBADMSG;
	if (!cipher)
		return 0;
	memcpy(&disk, page, sizeof(disk));
	disk.index_hash[0] = disk.index_hash[1] = 0;
	if (spill_cipher_begin(cipher, le64toh(disk.key_id), SPILL_LABEL_SEAL, disk.salt) < 0)
		return -EBADMSG;
	return spill_cipher_decrypt(
		cipher, 0, &disk, offsetof(struct spill_disk_seal, tag), entries, bytes, entries, disk.tag);
}

static inline uint64_t spill_seal_key_id(const void *page)
{
	const struct spill_disk_seal *disk = page;

	return le64toh(disk->key_id);
}

#endif
