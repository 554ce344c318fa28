/*
 * tree.pml - model of a chain of two blocks in kvpool: the child is never there without its parent
 *
 * Key 1 is the parent of key 2.  Each may be hot, cold, both or neither.  A library publishes the parent, then the child;
 * the daemon evicts, writes out, forgets cold copies (the tier is full, or a record is damaged) and is killed at any
 * step; what it rebuilds at its start is what descriptors and records say.
 *
 * RUDE: a library that holds nothing; it may hear REJECTED, but the daemon keeps its house in order.
 *
 *   BREAK_LEAF    a block with a hot child is evicted
 *   BREAK_COLD    a cold parent goes before its cold child
 *   BREAK_PARENT  the daemon takes a child whose parent is nowhere (with RUDE)
 *   BREAK_HOLD    the library lets the parent go before its child is published
 *   BREAK_LOST    a parent whose record is damaged goes alone
 */
#ifndef DKILLS
#define DKILLS 1
#endif
bool hot[3], cold[3];
bool pin;                               /* the library holds the parent */
byte msg;                               /* publish of this key is on its way */
byte ans;                               /* 0 none, 1 stored or there, 2 rejected */
byte dkills;
#ifdef RUDE
#define RUDE_LIBRARY true
#else
#define RUDE_LIBRARY false
#endif
#define THERE(k) (hot[k] || cold[k])

proctype Library()
{
	byte pc;

	do
	:: atomic { pc == 0 -> msg = 1; pc = 1 }
	:: atomic { pc == 1 && ans == 1 -> ans = 0; pc = 2 }
	/* pinned before it was published, so it is hot; or found and pinned */
	:: atomic { pc == 2 -> if :: hot[1] -> pin = true; pc = 3 :: else -> pc = 0 fi }
	:: atomic { pc == 3 ->
#if defined(BREAK_HOLD) || defined(RUDE)
		pin = false;
#endif
		msg = 2; pc = 4 }
	:: atomic { pc == 4 && ans != 0 -> assert(ans == 1 || RUDE_LIBRARY); ans = 0; pin = false; pc = 0 }
	od
}

proctype Daemon()
{
	byte pc, k;

	do
	:: atomic { pc == 0 && msg == 1 -> hot[1] = true; msg = 0; ans = 1 }
#ifdef BREAK_PARENT
	:: atomic { pc == 0 && msg == 2 -> hot[2] = true; msg = 0; ans = 1 }
#else
	:: atomic { pc == 0 && msg == 2 -> if :: THERE(1) -> hot[2] = true; ans = 1 :: else -> ans = 2 fi; msg = 0 }
#endif
	/* evict: leaves, and nothing that is pinned */
#ifdef BREAK_LEAF
	:: atomic { pc == 0 && hot[1] && !pin -> hot[1] = false }
#else
	:: atomic { pc == 0 && hot[1] && !pin && !hot[2] -> hot[1] = false; if :: !cold[1] -> cold[2] = false :: else fi }
#endif
	:: atomic { pc == 0 && hot[2] -> hot[2] = false }
	/* written out, read back: a child needs a parent that is hot to be read back */
	:: atomic { pc == 0 -> if :: k = 1 :: k = 2 fi; if :: hot[k] && !cold[k] -> pc = 1 :: else -> k = 0 fi }
	:: atomic { pc == 1 -> if :: hot[k] -> cold[k] = true :: else fi; k = 0; pc = 0 }
	:: atomic { pc == 0 && cold[1] && !hot[1] -> hot[1] = true }
	:: atomic { pc == 0 && cold[2] && !hot[2] && THERE(1) -> hot[2] = true }
	/* the tier is full: children before parents */
	:: atomic { pc == 0 && cold[2] -> cold[2] = false }
#ifdef BREAK_COLD
	:: atomic { pc == 0 && cold[1] -> cold[1] = false }
#else
	:: atomic { pc == 0 && cold[1] && (hot[1] || (!cold[2] && !hot[2])) -> cold[1] = false }
#endif
	/* a record is damaged: what hangs on it goes with it */
#ifdef BREAK_LOST
	:: atomic { pc == 0 && cold[1] && !hot[1] && !pin -> cold[1] = false }
#else
	:: atomic { pc == 0 && cold[1] && !hot[1] && !pin -> cold[1] = false; cold[2] = false; hot[2] = false }
#endif
	/* kill, and start */
	:: atomic { pc < 100 && dkills < DKILLS -> dkills++; k = 0; pc = 100 }
	:: atomic { pc == 100 -> pc = 0 }
	/* what is there can be reached */
	:: atomic { pc == 0 -> assert(!THERE(2) || THERE(1)) }
	od
}

init { atomic { run Library(); run Daemon() } }
