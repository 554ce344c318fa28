/*
 * pin.pml - model of finding, pinning, evicting, writing and restarting in kvpool
 *
 * Processes: one daemon (killed at any step, started again, recovering step by step), NR readers (killed or stopped at any
 * step), one writer with grants (WRITER), one device that finishes a read into a slot even if its daemon has died.
 * Every option of a loop is one access to shared memory, one message or one kill; all interleavings are explored.
 * Store buffers (x86-TSO) stand before the two stores whose order against the following load matters.
 *
 * The plain model follows the rules; each BREAK_x removes one rule, and the checker must then find a fault.
 *   features:  NR=n NSLOT=n GEN=n (generations wrap modulo GEN; RETIRE: a slot past its last one is never used again)
 *              WRITER  TAKE  EXISTS  REVOKE  LIVEDROP  PUTOUT  HOLD  MOVE  ANYHINT  NOREADER  DKILLS=n RKILLS=n WKILLS=n
 *   BREAK_READER_FENCE  pin store may be delayed past the second load of the word
 *   BREAK_EVICT_FENCE   DRAINING store may be delayed past the loads of the pin counts
 *   BREAK_KEY_ORDER     key compared before the pin only
 *   BREAK_RECHECK       no look at the word after use (with REVOKE)
 *   BREAK_CLOSEWORD     reader does not ask whether its session is still counted (with LIVEDROP)
 *   BREAK_ADOPT         a new daemon forgets the pin tables of clients that live on
 *   BREAK_DRAINING      a new daemon frees what it finds DRAINING instead of putting it back
 *   BREAK_TAKE          a grant taken from a live writer is reused at once (with WRITER, TAKE)
 *   BREAK_PUBCHECK      publish asks whose the slot was, not whether the grant still stands (with WRITER, TAKE)
 *   BREAK_IOFENCE       a new daemon reuses a slot into which the old one's read may still land
 *   BREAK_SELFPIN       a writer that goes on using its block pins it after publishing, not before (with WRITER)
 *   BREAK_DROP          pins of a dead session are counted for ever
 *   BREAK_LIST          a client asks for new grants before it has listed the old ones to a new daemon (with WRITER)
 *   BREAK_EXISTS        a writer that hears EXISTS drops its own block before it has pinned the other (with EXISTS)
 *   ARRIVE: a block that is being read back is pinned by those who were told its slot, its bytes used one after the other
 *   BREAK_LAYER    a reader uses the second byte before it is said to be there (with ARRIVE)
 *   BREAK_VERIFY   the first byte is said to be there before it has landed and was compared (with ARRIVE)
 *   BREAK_REUSE    the slot of a read that failed is given out without a look at the pins (with ARRIVE)
 *   BREAK_ARRIVED  a new daemon frees a slot that was arriving, though somebody may hold it (with ARRIVE)
 *   BREAK_HOLD          a block read back for somebody may go again before that one has pinned it (with HOLD)
 *   BREAK_MOVE          a block that moves leaves its old place before it is published at the new one (with MOVE)
 *   BREAK_TWICE         of a block found twice a new daemon keeps the one it meets first (with MOVE)
 */
#ifndef NR
#define NR 2
#endif
#ifndef NSLOT
#define NSLOT 1
#endif
#ifndef GEN
#define GEN 2
#endif
#ifndef DKILLS
#define DKILLS 1
#endif
#ifndef RKILLS
#define RKILLS 1
#endif
#ifndef WKILLS
#define WKILLS 1
#endif
#define NKEY 2
#define NONE 9
#ifdef WRITER
#define NSESS (NR + 1)                  /* the writer pins too */
#else
#define NSESS NR
#endif
#define W NR                            /* session number of the writer */

/* state of a descriptor's word */
#define FREE 0
#define GRANTED 1
#define RESTORING 2
#define PUB 3
#define DRAIN 4
#define TAKEN 5                         /* grant withdrawn, writer perhaps still writing: nobody gets the slot */

#define RETIRED 6                       /* its generations are used up */

/* session as its object tells it */
#define S_NONE 0
#define S_OPEN 1
#define S_CLOSED 2

typedef Slot { byte st; byte gen; byte key; byte b0; byte b1; byte lay }
typedef Pins { byte n[NSLOT] }

Slot s[NSLOT];
byte hint[NKEY + 1] = NONE;             /* the index: key -> slot, may be stale */
Pins pin[NSESS];
byte sess[NSESS];
bool alive[NSESS];                      /* kernel's knowledge: is the process there (lock on the session object) */
bool gone[NSESS];                       /* model only: this client will never come back */

byte dma_pc, dma_slot, dma_key;         /* one read in flight */
byte told[NKEY + 1] = NONE;             /* ARRIVE: where readers were told that a block arrives; stale for ever */
bool dma_bad;                           /* ARRIVE: what landed is not what was written */
bool dma_mine;                          /* the completion belongs to the living daemon */

byte w_msg, w_slot, w_gen, w_key, w_ans;/* writer's mailbox: 0 none, 1 reserve, 2 publish, 3 give back */
bool w_has[NSLOT];                      /* what the writer believes it may write to */
bool w_taken;                           /* check only: the grant it holds was taken away */
bool unlisted;                          /* a new daemon has not heard yet which grants the writer has */
bool w_listing;                         /* the writer's list is on its way */
bool w_list[NSLOT];
byte w_other;                           /* with EXISTS: where the other block lies */
bool res[NKEY + 1];                     /* check only: resident, and nobody has evicted it */
bool seen[NKEY + 1];                    /* recovery: found already */
byte r_ask;                             /* HOLD: reader 0 wants this key read back */
bool r_ans;
bool held[NSLOT];                       /* HOLD: not evicted until its reader has pinned it */
#define A_NONE 0
#define A_GRANT 1
#define A_STORED 2
#define A_REFUSED 3
#define A_EXISTS 4
bool dsb;                               /* DRAINING waits in the daemon's store buffer */
byte dsb_slot;
byte dkills, rkills, wkills;
byte i_;

#define ALLGONE (gone[0] && (NR < 2 || gone[NR - 1]) && (NR < 3 || gone[1]) && gone[NSESS - 1])
#define NEXTGEN(i) s[i].gen = (s[i].gen + 1) % GEN

#ifdef RETIRE
inline set_free(i) { if :: s[i].gen == GEN - 1 -> s[i].st = RETIRED :: else -> NEXTGEN(i); s[i].st = FREE fi; s[i].key = 0 }
#else
inline set_free(i) { NEXTGEN(i); s[i].st = FREE; s[i].key = 0; s[i].lay = 0 }
#endif

#ifdef HOLD
#define FORGET r_ask = 0; r_ans = false; i_ = 0; do :: i_ < NSLOT -> held[i_] = false; i_++ :: else -> break od; i_ = 0
#else
#define FORGET skip
#endif
#define STANDS (s[h].gen == g && (s[h].st == RESTORING || s[h].st == PUB || s[h].st == DRAIN))
proctype Reader(byte me)
{
	byte pc, k, h, g, v0, v1;
	bool sb;                        /* my pin waits in my store buffer */
	bool promised;                  /* HOLD: it was said to be there */

	do
	/* 0: probe the index */
	:: atomic { pc == 0 && sess[me] == S_OPEN ->
		if :: k = 1 :: k = 2 fi;
#ifdef ANYHINT
		if :: h = 0 :: (NSLOT > 1) -> h = NSLOT - 1 fi;
#else
		h = hint[k];
#endif
#ifdef HOLD
		if :: h != NONE -> pc = 1 :: else -> h = 0; r_ask = k; pc = 30 fi }
	:: atomic { pc == 30 && r_ans -> r_ans = false; h = hint[k]; promised = true; assert(h != NONE); pc = 1 }
#else
		if :: h != NONE -> pc = 1 :: else -> k = 0; h = 0 fi }
#endif
	:: atomic { pc == 0 -> pc = 20; gone[me] = true; alive[me] = false; goto out }
#ifdef ARRIVE
	/* ---- a block that arrives, in the slot that was told */
	:: atomic { pc == 0 && sess[me] == S_OPEN -> if :: k = 1 :: k = 2 fi; h = told[k];
		if :: h != NONE && s[h].st == RESTORING && s[h].lay > 0 -> g = s[h].gen; pc = 41 :: else -> k = 0; h = 0 fi }
	:: atomic { pc == 41 -> pin[me].n[h]++; pc = 42 }
	:: atomic { pc == 42 -> if :: ((s[h].st == RESTORING && s[h].lay > 0) || s[h].st == PUB) && s[h].gen == g -> pc = 43 :: else -> pc = 10 fi }
	:: atomic { pc == 43 -> if :: sess[me] == S_OPEN -> pc = 44 :: else -> pc = 10 fi }
	:: atomic { pc == 44 -> if :: s[h].key == k -> pc = 45 :: else -> pc = 10 fi }
	:: atomic { pc == 45 -> v0 = s[h].b0; pc = 46 }
	:: atomic { pc == 46 -> if :: STANDS -> assert(v0 == k); pc = 47 :: else -> pc = 10 fi }
	/* the second one: there once the block is published; or no longer waited for */
#ifdef BREAK_LAYER
	:: atomic { pc == 47 -> pc = 48 }
#else
	:: atomic { pc == 47 && STANDS && s[h].st != RESTORING -> pc = 48 }
#endif
	:: atomic { pc == 47 -> pc = 10 }
	:: atomic { pc == 48 -> v1 = s[h].b1; pc = 49 }
	:: atomic { pc == 49 -> if :: STANDS -> assert(v1 == k) :: else fi; pc = 10 }
#endif
	/* the daemon no longer counts our session: ask for a new one */
	:: atomic { pc == 0 && sess[me] == S_NONE -> sess[me] = S_OPEN }
	/* 1: first look at the word */
	:: atomic { pc == 1 ->
		if :: s[h].st == PUB -> g = s[h].gen; pc = 2
		   :: else -> assert(!promised); pc = 0; k = 0; h = 0 fi }
#ifdef BREAK_KEY_ORDER
	:: atomic { pc == 2 -> if :: s[h].key == k -> pc = 3 :: else -> pc = 0; k = 0; h = 0; g = 0 fi }
#else
	:: atomic { pc == 2 -> pc = 3 }
#endif
	/* 3: pin */
#ifdef BREAK_READER_FENCE
	:: atomic { pc == 3 -> sb = true; pc = 4 }
	:: atomic { sb -> sb = false; pin[me].n[h]++ }
#else
	:: atomic { pc == 3 -> pin[me].n[h]++; pc = 4 }
#endif
	/* 4: the same word still? */
	:: atomic { pc == 4 -> if :: s[h].st == PUB && s[h].gen == g -> pc = 5 :: else -> pc = 10 fi }
	/* 5: does the daemon still count our session? */
#ifdef BREAK_CLOSEWORD
	:: atomic { pc == 5 -> pc = 6 }
#else
	:: atomic { pc == 5 -> if :: sess[me] == S_OPEN -> pc = 6 :: else -> pc = 10 fi }
#endif
	/* 6: the key, under the pin */
#ifdef BREAK_KEY_ORDER
	:: atomic { pc == 6 -> pc = 7 }
#else
	:: atomic { pc == 6 -> if :: s[h].key == k -> held[h] = false; promised = false; pc = 7 :: else -> pc = 10 fi }
#endif
	/* 7, 8: the bytes */
	:: atomic { pc == 7 -> v0 = s[h].b0; pc = 8 }
	:: atomic { pc == 8 -> v1 = s[h].b1; pc = 9 }
	/* 9: believe, after another look at the word if holds can be revoked */
	:: atomic { pc == 9 ->
#if (defined(REVOKE) || defined(PUTOUT)) && !defined(BREAK_RECHECK)
		if :: s[h].gen == g && (s[h].st == PUB || s[h].st == DRAIN) -> assert(v0 == k && v1 == k)
		   :: else
		fi;
#else
		assert(v0 == k && v1 == k);
#endif
		v0 = 0; v1 = 0; pc = 10 }
	/* 10: unpin */
	:: atomic { pc == 10 && !sb -> assert(!promised); pin[me].n[h]--; pc = 0; k = 0; h = 0; g = 0; v0 = 0; v1 = 0 }
	/* kill -9 */
	:: atomic { pc < 20 && rkills < RKILLS -> rkills++; alive[me] = false; promised = false; FORGET; pc = 20; k = 0; h = 0; g = 0; v0 = 0; v1 = 0; sb = false }
	/* a new client takes the dead one's place once the daemon has cleared up */
	:: atomic { pc == 20 && sess[me] == S_NONE -> alive[me] = true; sess[me] = S_OPEN; pc = 0 }
	:: atomic { pc == 20 -> gone[me] = true; goto out }
	od;
out:	skip
}

#ifdef WRITER
#define LISTED(v) (w_has[v] || (w_msg >= 2 && w_slot == v))      /* what the writer says it has when it reconnects */
proctype Writer()
{
	byte pc, k, h, g, g2;

	do
	:: atomic { pc == 0 && sess[W] == S_OPEN && w_msg == 0 -> w_msg = 1; pc = 1 }
	/* to a new daemon, before anything else: which grants it has */
	:: atomic { pc < 20 && unlisted && !w_listing -> i_ = 0;
		do :: i_ < NSLOT -> w_list[i_] = LISTED(i_); i_++ :: else -> break od; i_ = 0; w_listing = true }
	:: atomic { pc == 0 && w_msg == 0 -> gone[W] = true; alive[W] = false; goto out }
	:: atomic { pc == 1 && w_ans == A_GRANT -> w_ans = A_NONE; h = w_slot; g = w_gen; pc = 2; if :: k = 1 :: k = 2 fi }
	:: atomic { pc == 1 && w_ans == A_REFUSED -> w_ans = A_NONE; pc = 0 }
	:: atomic { pc == 2 -> s[h].b0 = k; pc = 3 }
	:: atomic { pc == 3 -> s[h].b1 = k; pc = 4 }
	/* a writer that goes on using its block pins it while it still holds the grant */
#ifndef BREAK_SELFPIN
	:: atomic { pc == 4 -> pin[W].n[h]++; pc = 5 }
#else
	:: atomic { pc == 4 -> pc = 5 }
#endif
	:: atomic { pc == 5 && w_msg == 0 -> w_slot = h; w_gen = g; w_key = k; w_has[h] = false; w_msg = 2; pc = 6 }
	:: atomic { pc == 6 && w_ans == A_STORED -> w_ans = A_NONE;
#ifdef BREAK_SELFPIN
		pc = 7 }
	:: atomic { pc == 7 -> pin[W].n[h]++; pc = 8 }
#else
		pc = 8 }
#endif
	:: atomic { pc == 6 && w_ans == A_REFUSED -> w_ans = A_NONE; pc = 10 }
#ifdef EXISTS
	/* the other block first, then its own goes; if the other went meanwhile, publish its own again */
#ifdef BREAK_EXISTS
	:: atomic { pc == 6 && w_ans == A_EXISTS -> w_ans = A_NONE; pin[W].n[h]--; w_has[h] = false; w_slot = h; w_msg = 3; h = w_other; w_other = 0; pc = 12 }
	:: atomic { pc == 12 && w_msg == 0 -> assert(s[h].st == PUB && s[h].key == k); pin[W].n[h]++; pc = 8 }
#else
	:: atomic { pc == 6 && w_ans == A_EXISTS -> w_ans = A_NONE; pc = 13 }
	:: atomic { pc == 13 -> if :: s[w_other].st == PUB -> g2 = s[w_other].gen; pc = 14 :: else -> w_other = 0; pc = 5 fi }
	:: atomic { pc == 14 -> pin[W].n[w_other]++; pc = 15 }
	:: atomic { pc == 15 -> if :: s[w_other].st == PUB && s[w_other].gen == g2 && s[w_other].key == k -> pc = 16 :: else -> pc = 17 fi; g2 = 0 }
	:: atomic { pc == 17 -> pin[W].n[w_other]--; w_other = 0; pc = 5 }
	:: atomic { pc == 16 && w_msg == 0 -> pin[W].n[h]--; w_has[h] = false; w_slot = h; w_msg = 3; h = w_other; w_other = 0; pc = 18 }
	:: atomic { pc == 18 && w_msg == 0 -> pc = 8 }
#endif
#endif
	/* reads its own block in place */
	:: atomic { pc == 8 -> assert(s[h].b0 == k); pc = 9 }
	:: atomic { pc == 9 -> pin[W].n[h]--; pc = 0; k = 0; h = 0; g = 0 }
	/* refused: stop writing, give the slot back */
	:: atomic { pc == 10 && w_msg == 0 ->
#ifndef BREAK_SELFPIN
		pin[W].n[h]--;
#endif
		w_slot = h; w_msg = 3; pc = 11 }
	:: atomic { pc == 11 && w_msg == 0 -> pc = 0; k = 0; h = 0; g = 0 }
	:: atomic { pc < 20 && wkills < WKILLS -> wkills++; alive[W] = false; pc = 20; k = 0; h = 0; g = 0; g2 = 0; w_other = 0;
		w_msg = 0; w_ans = 0; w_taken = false; w_listing = false; i_ = 0; do :: i_ < NSLOT -> w_has[i_] = false; i_++ :: else -> break od; i_ = 0 }
	:: atomic { pc == 20 && sess[W] == S_NONE -> alive[W] = true; sess[W] = S_OPEN; pc = 0 }
	:: atomic { pc == 20 -> gone[W] = true; goto out }
	od;
out:	skip
}
#endif

/* The device: bytes land one after the other, whatever has become of the daemon. */
proctype Device()
{
end:	do
	:: atomic { dma_pc == 1 -> s[dma_slot].b0 = dma_key; dma_pc = 2 }
	:: atomic { dma_pc == 2 -> s[dma_slot].b1 = dma_key; dma_pc = 3 }
#ifdef ARRIVE
	:: atomic { dma_pc == 1 -> s[dma_slot].b0 = 0; dma_bad = true; dma_pc = 2 }
	:: atomic { dma_pc == 2 -> s[dma_slot].b1 = 0; dma_bad = true; dma_pc = 3 }
#endif
	:: atomic { dma_pc == 3 && !dma_mine -> dma_pc = 0; dma_bad = false; dma_slot = 0; dma_key = 0 }    /* nobody reaps it: old ring ends */
	od
}

#define UP(p) (pc == p)
#ifdef BREAK_HOLD
#define PROMISE(v) r_ans = true; r_ask = 0
#else
#define PROMISE(v) held[v] = true; r_ans = true; r_ask = 0
#endif
#ifdef BREAK_LIST
#define HEARD true
#else
#define HEARD (!unlisted)                       /* a client sends its list first, the rest after it */
#endif
#ifdef PUTOUT
#define COUNTED(r) (sess[r] == S_OPEN)          /* who is put out loses the holds it has */
#else
#define COUNTED(r) (sess[r] != S_NONE)
#endif

proctype Daemon()
{
	byte pc, v, r, k, to;

	do
	/* ---- idle: choose what to do for slot v */
	:: atomic { UP(0) && !ALLGONE -> if :: v = 0 :: (NSLOT > 1) -> v = NSLOT - 1 fi; pc = 1 }
	:: atomic { UP(0) && ALLGONE -> pc = 50 }

	/* ---- evict */
	:: atomic { UP(1) && s[v].st == PUB && !held[v] ->
#ifdef BREAK_EVICT_FENCE
		dsb = true; dsb_slot = v;
#else
		s[v].st = DRAIN;
#endif
		r = 0; pc = 2 }
#ifdef BREAK_EVICT_FENCE
	:: atomic { dsb -> dsb = false; dsb_slot = 0; s[v].st = DRAIN }
#endif
	:: atomic { UP(2) && r < NSESS ->
		if
		:: !COUNTED(r) || pin[r].n[v] == 0 -> r++
		:: COUNTED(r) && pin[r].n[v] != 0 -> r = 0; pc = 3
#ifdef REVOKE
		:: sess[r] != S_NONE && pin[r].n[v] != 0 && r < NR -> r++
#endif
		fi }
	:: atomic { UP(2) && r == NSESS -> r = 0; pc = 4 }
	:: atomic { UP(3) && !dsb -> s[v].st = PUB; v = 0; pc = 0 }                 /* somebody holds it: put back */
	:: atomic { UP(4) && !dsb -> k = s[v].key; if :: hint[k] == v -> hint[k] = NONE :: else fi; k = 0; pc = 5 }
	:: atomic { UP(5) -> res[s[v].key] = false; set_free(v); v = 0; pc = 0 }

	/* ---- restore a block from the device */
	:: atomic { UP(1) && s[v].st == FREE && dma_pc == 0 ->
#ifdef HOLD
		if :: r_ask != 0 -> k = r_ask :: else -> k = 1 fi;
#else
		if :: k = 1 :: k = 2 fi;
#endif
		if :: hint[k] != NONE -> k = 0; v = 0; pc = 0
		   :: else -> assert(!w_has[v]); s[v].st = RESTORING; pc = 10
		fi }
	:: atomic { UP(10) -> dma_slot = v; dma_key = k; dma_pc = 1; dma_bad = false; dma_mine = true; v = 0; k = 0; pc = 0 }
	:: atomic { UP(0) && dma_pc == 3 && dma_mine -> v = dma_slot; k = dma_key; dma_pc = 0; dma_slot = 0; dma_key = 0; dma_mine = false;
		if :: s[v].st == RESTORING -> if :: hint[k] == NONE && !dma_bad -> pc = 20 :: else -> pc = 23 fi fi; dma_bad = false }
	/* a read of an earlier daemon into this slot has ended: the slot is free */
	:: atomic { UP(1) && s[v].st == RESTORING && !(dma_pc != 0 && dma_slot == v) -> set_free(v); v = 0; pc = 0 }
#ifdef ARRIVE
	/* the first byte has landed and is right: fields, then the count; then readers are told */
#ifdef BREAK_VERIFY
	:: atomic { UP(1) && s[v].st == RESTORING && s[v].lay == 0 && dma_mine && dma_pc >= 1 && dma_slot == v -> k = dma_key; pc = 90 }
#else
	:: atomic { UP(1) && s[v].st == RESTORING && s[v].lay == 0 && dma_mine && dma_pc >= 2 && dma_slot == v && s[v].b0 == dma_key -> k = dma_key; pc = 90 }
#endif
	:: atomic { UP(90) -> s[v].key = k; pc = 91 }
	:: atomic { UP(91) -> s[v].lay = 1; pc = 92 }
	:: atomic { UP(92) -> told[k] = v; v = 0; k = 0; pc = 0 }
	/* it failed: nobody new, holds are void; the slot is nobody's while somebody pins it */
	:: atomic { UP(23) && s[v].lay > 0 -> NEXTGEN(v); s[v].st = TAKEN; v = 0; k = 0; pc = 0 }
	:: atomic { UP(23) && s[v].lay == 0 -> set_free(v); v = 0; k = 0; pc = 0 }
	:: atomic { UP(1) && s[v].st == TAKEN && !(dma_pc != 0 && dma_slot == v) -> r = 0; pc = 93 }
	:: atomic { UP(93) && r < NSESS ->
#ifdef BREAK_REUSE
		r++ }
#else
		if :: !COUNTED(r) || pin[r].n[v] == 0 -> r++ :: else -> r = 0; v = 0; pc = 0 fi }
#endif
	:: atomic { UP(93) && r == NSESS -> set_free(v); r = 0; v = 0; pc = 0 }
#else
	:: atomic { UP(23) -> set_free(v); v = 0; k = 0; pc = 0 }
#endif

	/* ---- publish: fields, word, index */
	:: atomic { UP(20) -> s[v].key = k; pc = 21 }
	:: atomic { UP(21) -> s[v].st = PUB; res[k] = true; pc = 22 }
	:: atomic { UP(22) -> hint[k] = v;
#ifdef HOLD
		if :: r_ask == k -> PROMISE(v) :: else fi;
#endif
		v = 0; k = 0; pc = 0 }
	/* it is there already */
#ifdef HOLD
	:: atomic { UP(0) && r_ask != 0 && hint[r_ask] != NONE -> PROMISE(hint[r_ask]) }
#endif

#ifdef MOVE
	/* ---- move to another slot: the old place drains, the new one is published, only then the old one is free */
	:: atomic { UP(1) && s[v].st == PUB && s[1 - v].st == FREE -> to = 1 - v; s[to].st = RESTORING; pc = 70 }
	:: atomic { UP(70) -> s[v].st = DRAIN; r = 0; pc = 71 }
	:: atomic { UP(71) && r < NSESS -> if :: !COUNTED(r) || pin[r].n[v] == 0 -> r++ :: else -> r = 0; pc = 78 fi }
	:: atomic { UP(71) && r == NSESS -> r = 0; pc = 72 }
	:: atomic { UP(78) -> s[v].st = PUB; pc = 79 }
	:: atomic { UP(79) -> set_free(to); v = 0; to = 0; pc = 0 }
	:: atomic { UP(72) -> s[to].b0 = s[v].b0; pc = 73 }
	:: atomic { UP(73) -> s[to].b1 = s[v].b1; pc = 74 }
	:: atomic { UP(74) -> k = s[v].key; if :: hint[k] == v -> hint[k] = NONE :: else fi;
#ifdef BREAK_MOVE
		set_free(v);
#endif
		pc = 75 }
	:: atomic { UP(75) -> s[to].key = k; pc = 76 }
	:: atomic { UP(76) -> s[to].st = PUB; pc = 77 }
	:: atomic { UP(77) -> hint[k] = to; k = 0; pc = 80 }
	:: atomic { UP(80) ->
#ifndef BREAK_MOVE
		set_free(v);
#endif
		v = 0; to = 0; pc = 0 }
#endif

#ifdef WRITER
	/* the writer's list: what was granted by an answer that never arrived is free */
	:: atomic { UP(0) && w_listing -> v = 0;
		do :: v < NSLOT -> if :: (s[v].st == GRANTED || s[v].st == TAKEN) && !w_list[v] -> set_free(v) :: else fi; w_list[v] = false; v++ :: else -> break od;
		v = 0; w_listing = false; unlisted = false }
	:: atomic { UP(1) && w_msg == 1 && s[v].st == FREE && w_ans == A_NONE && HEARD ->
		assert(!w_has[v]); assert(!(dma_pc != 0 && dma_slot == v)); s[v].st = GRANTED; pc = 11 }
	:: atomic { UP(11) -> w_msg = 0; if :: alive[W] -> w_slot = v; w_gen = s[v].gen; w_has[v] = true; w_taken = false; w_ans = A_GRANT :: else fi; v = 0; pc = 0 }
	:: atomic { UP(0) && w_msg == 2 && HEARD ->
		v = w_slot; k = w_key;
		if
#ifdef BREAK_PUBCHECK
		:: (s[v].st == GRANTED || s[v].st == TAKEN) && hint[k] == NONE -> assert(!w_taken); pc = 30
#else
		:: s[v].st == GRANTED && s[v].gen == w_gen && hint[k] == NONE -> assert(!w_taken); pc = 30
#ifdef EXISTS
		:: s[v].st == GRANTED && s[v].gen == w_gen && hint[k] != NONE -> w_other = hint[k]; w_has[v] = true; w_ans = A_EXISTS; w_msg = 0; v = 0; k = 0
#endif
#endif
		:: else -> w_msg = 0; w_ans = A_REFUSED; v = 0; k = 0
		fi }
	:: atomic { UP(30) -> s[v].key = k; pc = 31 }
	:: atomic { UP(31) -> s[v].st = PUB; res[k] = true; pc = 32 }
	:: atomic { UP(32) -> hint[k] = v; pc = 33 }
	:: atomic { UP(33) -> if :: alive[W] && w_msg == 2 -> w_msg = 0; w_ans = A_STORED :: else fi; v = 0; k = 0; pc = 0 }
	:: atomic { UP(0) && w_msg == 3 && HEARD -> v = w_slot;
		if :: s[v].st == GRANTED || s[v].st == TAKEN -> set_free(v) :: else fi; w_msg = 0; v = 0 }
	/* a grant past its time */
#ifdef TAKE
#ifdef BREAK_TAKE
	:: atomic { UP(1) && s[v].st == GRANTED && LISTED(v) -> set_free(v); w_taken = true; v = 0; pc = 0 }
#else
	:: atomic { UP(1) && s[v].st == GRANTED && LISTED(v) -> s[v].st = TAKEN; w_taken = true; v = 0; pc = 0 }
#endif
#endif
#endif
	:: atomic { UP(1) -> v = 0; pc = 0 }

	/* ---- sessions */
#ifndef BREAK_DROP
	:: atomic { UP(0) -> if :: r = 0 :: NSESS > 1 -> r = 1 :: NSESS > 2 -> r = 2 fi;
		if :: sess[r] != S_NONE && !alive[r] -> pc = 40 :: else -> r = 0 fi }
#endif
	/* dead: its grants are free (nobody runs who could write), its object goes */
	:: atomic { UP(40) -> v = 0;
		if :: (r == W) -> do :: v < NSLOT -> if :: s[v].st == GRANTED || s[v].st == TAKEN -> set_free(v) :: else fi; v++ :: else -> break od :: else fi;
		v = 0; pc = 41 }
	:: atomic { UP(41) -> sess[r] = S_NONE; if :: r == W -> unlisted = false; w_listing = false :: else fi; v = 0; do :: v < NSLOT -> pin[r].n[v] = 0; v++ :: else -> break od; v = 0; r = 0; pc = 0 }
#ifdef LIVEDROP
	/* a living client is put out: say so in its session object first, then wait until it holds nothing */
	:: atomic { UP(0) && sess[0] == S_OPEN && alive[0] ->
#ifdef BREAK_CLOSEWORD
		sess[0] = S_NONE }
#else
		sess[0] = S_CLOSED }
#endif
	:: atomic { UP(0) && sess[0] == S_CLOSED && alive[0] && pin[0].n[0] == 0 && pin[0].n[NSLOT - 1] == 0 -> sess[0] = S_NONE }
#endif

	/* ---- kill -9 of the daemon, anywhere; what it had stored is stored */
	:: atomic { pc < 100 && dkills < DKILLS -> dkills++;
		if :: dsb -> s[v].st = DRAIN; dsb = false; dsb_slot = 0 :: else fi;
		dma_mine = false; v = 0; r = 0; k = 0; to = 0; pc = 100 }

	/* ---- start: descriptors are the truth, the index is repaired in place */
	:: atomic { pc == 100 ->
#ifdef BREAK_ADOPT
		r = 0; do :: r < NSESS -> sess[r] = S_NONE; r++ :: else -> break od; r = 0;
#endif
		k = 1; do :: k <= NKEY -> seen[k] = false; k++ :: else -> break od; k = 0;
		pc = 60 }
	:: atomic { UP(60) && v < NSLOT ->
		if
		:: s[v].st == PUB && !seen[s[v].key] -> seen[s[v].key] = true; pc = 62
		:: s[v].st == PUB && seen[s[v].key] -> set_free(v); v++
#ifdef BREAK_DRAINING
		:: s[v].st == DRAIN -> set_free(v); v++
#elif defined(MOVE) && !defined(BREAK_TWICE)
		/* it was moved, and the other copy may be pinned: this one has drained, so this one goes */
		:: s[v].st == DRAIN && s[1 - v].st == PUB && s[1 - v].key == s[v].key -> set_free(v); v++
		:: s[v].st == DRAIN && !(s[1 - v].st == PUB && s[1 - v].key == s[v].key) -> seen[s[v].key] = true; s[v].st = PUB; pc = 62
#else
		:: s[v].st == DRAIN && !seen[s[v].key] -> seen[s[v].key] = true; s[v].st = PUB; pc = 62
		:: s[v].st == DRAIN && seen[s[v].key] -> set_free(v); v++
#endif
#ifdef WRITER
		/* kept while its owner lives, until that one says what it has; the dead one's go with its session */
		:: s[v].st == GRANTED || s[v].st == TAKEN -> v++
#endif
#ifdef BREAK_IOFENCE
		:: s[v].st == RESTORING -> set_free(v); v++
#else
#if defined(ARRIVE) && !defined(BREAK_ARRIVED)
		:: s[v].st == RESTORING && s[v].lay > 0 -> NEXTGEN(v); s[v].st = TAKEN; v++
		:: s[v].st == RESTORING && s[v].lay == 0 -> v++
#else
		:: s[v].st == RESTORING -> v++
#endif
#ifdef ARRIVE
		:: s[v].st == TAKEN -> v++
#endif
#endif
		:: s[v].st == FREE || s[v].st == RETIRED -> v++
		fi }
	:: atomic { UP(62) -> hint[s[v].key] = v; v++; pc = 60 }
	:: atomic { UP(60) && v == NSLOT ->
		/* kill -9 lost nothing that was resident */
		k = 1; do :: k <= NKEY -> assert(!res[k] || seen[k]); seen[k] = false; k++ :: else -> break od; k = 0;
#ifdef WRITER
		unlisted = (sess[W] != S_NONE); w_listing = false;
#endif
		v = 0; pc = 0 }

	/* ---- all clients have gone for ever: everything must come back */
	:: atomic { UP(50) && dma_pc == 3 && dma_mine -> dma_pc = 0; dma_bad = false; dma_slot = 0; dma_key = 0; dma_mine = false }
	:: atomic { UP(50) && r < NSESS ->
#ifndef BREAK_DROP
		if :: sess[r] != S_NONE -> sess[r] = S_NONE; v = 0; do :: v < NSLOT -> pin[r].n[v] = 0; v++ :: else -> break od; v = 0
		   :: else fi;
#endif
		r++ }
	:: atomic { UP(50) && r == NSESS && dma_pc == 0 -> v = 0;
		do
		:: v < NSLOT ->
			if :: s[v].st == PUB -> assert(hint[s[v].key] == v) :: else fi;     /* resident means findable */
			r = 0; do :: r < NSESS -> assert(sess[r] == S_NONE || pin[r].n[v] == 0); r++ :: else -> break od;
			assert(s[v].st != DRAIN);
			set_free(v); v++
		:: else -> break
		od;
		goto out }
	od;
out:	skip
}

init {
	atomic {
		byte n;
		n = 0; do :: n <= NKEY -> hint[n] = NONE; told[n] = NONE; n++ :: else -> break od;
		n = 0; do :: n < NSESS -> sess[n] = S_OPEN; alive[n] = true; n++ :: else -> break od;
#ifdef NOREADER
		sess[0] = S_NONE; alive[0] = false; gone[0] = true;
#else
		n = 0; do :: n < NR -> run Reader(n); n++ :: else -> break od;
		n = 0;
#endif
#ifdef WRITER
		run Writer();
#endif
		run Device();
		run Daemon()
	}
}
