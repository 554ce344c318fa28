/*
 * slab.pml - model of a place whose slab changes: the slab's number, mappings and pin pages in kvpool
 *
 * One place with one slot.  Slabs with rising numbers come and go in it; each is an object of its own, and one that left
 * is punched empty but stays mapped by whoever had it.  A reader maps the slab it finds, pins and reads through that
 * mapping; the daemon counts its pins only once it has given the reader pin pages for the place.  The daemon is killed at
 * any step.  One step is one access to shared memory or one message.
 *
 *   BREAK_SLABNO    the reader does not look whether the block lies in the slab it has mapped
 *   BREAK_NUMBER    a number is given again
 *   BREAK_MAPFIRST  the daemon answers a MAP before it counts the pins of that place
 *   BREAK_POPULATE  pin pages are only allocated, so that a new daemon does not find them
 *   BREAK_UNLIST    a slab leaves without being empty
 */
#ifndef DKILLS
#define DKILLS 1
#endif
#define NSLAB 3
#define NOSLAB 9

#define FREE 0
#define RESTORING 1
#define PUB 2
#define DRAIN 3

byte st, gen, key, num;                 /* the descriptor; num: slab_number */
byte tab;                               /* slab table: number of the slab, 0 none */
byte next = 1;                          /* objects are made in this order */
byte cur;                               /* the object that lies there */
byte obj[NSLAB + 1];                    /* the bytes, by object: 0 or a key */
bool hint[3];
byte pin;                               /* the reader's pin table for this place */
bool data;                              /* the page of that table reads as data */
bool counted;                           /* the daemon's memory: the session has this place */
bool m_ask;                             /* MAP on its way */
byte m_ans, m_obj;                      /* its answer: the number and, as a descriptor, the object */
byte dkills;

proctype Reader()
{
	byte pc, k, map, o, g;

	do
	:: atomic { pc == 0 -> if :: k = 1 :: k = 2 fi; if :: hint[k] -> pc = 1 :: else -> k = 0 fi }
	:: atomic { pc == 1 -> if :: tab == 0 -> k = 0; pc = 0 :: tab != 0 && map != tab -> k = 0; m_ask = true; pc = 20 :: tab != 0 && map == tab -> pc = 2 fi }
	:: atomic { pc == 20 && m_ans != 0 -> if :: m_ans != NOSLAB -> map = m_ans; o = m_obj :: else fi; m_ans = 0; m_obj = 0; pc = 0 }
	:: atomic { pc == 2 -> if :: st == PUB -> g = gen; pc = 3 :: else -> k = 0; pc = 0 fi }
	:: atomic { pc == 3 -> pin++; data = true; pc = 4 }
	:: atomic { pc == 4 -> if :: st == PUB && gen == g -> pc = 5 :: else -> pc = 8 fi }
#ifdef BREAK_SLABNO
	:: atomic { pc == 5 -> pc = 6 }
#else
	:: atomic { pc == 5 -> if :: num == map -> pc = 6 :: else -> pc = 8 fi }
#endif
	:: atomic { pc == 6 -> if :: key == k -> pc = 7 :: else -> pc = 8 fi }
	:: atomic { pc == 7 -> assert(obj[o] == k); pc = 8 }
	:: atomic { pc == 8 -> pin--; k = 0; g = 0; pc = 0 }
	od
}

#define UP(p) (pc == p)
#ifdef BREAK_NUMBER
#define NUMBER(object) 1
#else
#define NUMBER(object) object
#endif
#define NEXTGEN gen = (gen + 1) % 2

proctype Daemon()
{
	byte pc, k;

	do
	/* evict */
	:: atomic { UP(0) && st == PUB -> st = DRAIN; pc = 1 }
	:: atomic { UP(1) -> if :: counted && pin > 0 -> pc = 2 :: else -> pc = 3 fi }
	:: atomic { UP(2) -> st = PUB; pc = 0 }
	:: atomic { UP(3) -> hint[key] = false; pc = 4 }
	:: atomic { UP(4) -> NEXTGEN; key = 0; st = FREE; pc = 0 }
	/* fill and publish */
	:: atomic { UP(0) && st == FREE && tab != 0 -> if :: k = 1 :: k = 2 fi; st = RESTORING; pc = 10 }
	:: atomic { UP(10) -> obj[cur] = k; pc = 11 }
	:: atomic { UP(11) -> key = k; pc = 12 }
	:: atomic { UP(12) -> st = PUB; pc = 13 }
	:: atomic { UP(13) -> hint[k] = true; k = 0; pc = 0 }
	/* the slab leaves: unlisted, no longer counted, punched */
#ifdef BREAK_UNLIST
	:: atomic { UP(0) && tab != 0 && (st == FREE || st == PUB) -> tab = 0; pc = 20 }
#else
	:: atomic { UP(0) && tab != 0 && st == FREE -> tab = 0; pc = 20 }
#endif
	:: atomic { UP(20) -> counted = false; pc = 21 }
	:: atomic { UP(21) -> obj[cur] = 0; cur = 0; pc = 0 }
	/* another one comes */
	:: atomic { UP(0) && tab == 0 && next <= NSLAB -> cur = next; next++; num = NUMBER(cur); pc = 30 }
	:: atomic { UP(30) -> tab = NUMBER(cur); pc = 0 }
	/* MAP: pin pages, made so that a successor finds them, then the answer */
#ifdef BREAK_MAPFIRST
	:: atomic { UP(0) && m_ask && tab != 0 -> m_ask = false; m_ans = tab; m_obj = cur; pc = 40 }
#else
	:: atomic { UP(0) && m_ask && tab != 0 -> pc = 40 }
#endif
	:: atomic { UP(40) -> counted = true;
#ifndef BREAK_POPULATE
		data = true;
#endif
		pc = 41 }
	:: atomic { UP(41) ->
#ifndef BREAK_MAPFIRST
		m_ask = false; m_ans = tab; m_obj = cur;
#endif
		pc = 0 }

	:: atomic { UP(0) && m_ask && tab == 0 -> m_ask = false; m_ans = NOSLAB }

	/* kill -9, and the next one: slab rows tell which slab is there, data pages tell who counts */
	:: atomic { pc < 100 && dkills < DKILLS -> dkills++; k = 0; if :: pc == 20 || pc == 21 -> tab = 0; obj[cur] = 0; cur = 0 :: pc == 30 -> tab = NUMBER(cur) :: else fi; pc = 100 }
	:: atomic { UP(100) -> counted = data;
		if :: st == DRAIN -> st = PUB :: st == RESTORING -> NEXTGEN; st = FREE :: else fi;
		hint[1] = (st == PUB && key == 1); hint[2] = (st == PUB && key == 2);
		pc = 0 }
	od
}

init { atomic { run Reader(); run Daemon() } }
