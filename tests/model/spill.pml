/*
 * spill.pml - model of blocks that go to disk and come back in kvpool
 *
 * One slot, one place for a record, two keys.  A write takes the block's two bytes from the slab one after the other,
 * a read puts them back; both go on after their daemon has been killed, and a new one does not wait for them.  The place
 * is written again with another block at any time, also between finding a record and reading it.
 *
 *   BREAK_IO       a slot is given to another block while it is being written
 *   BREAK_SUM      what is read back is not compared with the record's checksum
 *   BREAK_NAME     what is read back is not compared with the key that was looked for
 *   BREAK_IOFENCE  a new daemon gives away a slot into which a dead one's read may still land
 */
#ifndef DKILLS
#define DKILLS 1
#endif

#define FREE 0
#define RESTORING 1
#define PUB 2

byte st, key, b0, b1;                   /* the slot */
bool io;                                /* it is being written */
byte r_key, r0, r1;                     /* the record: its name and its bytes; the checksum is that of (name, name) */
byte cold;                              /* the daemon's index: which key lies there, 0 none */
byte w_pc, w_key;                       /* a write in flight */
bool w_mine;
byte d_pc, d_key;                       /* a read in flight; what it has read of the record */
byte d_name, d0, d1;
bool d_mine;
byte dkills;

proctype Disk()
{
end:	do
	:: atomic { w_pc == 1 -> r_key = w_key; w_pc = 2 }
	:: atomic { w_pc == 2 -> r0 = b0; w_pc = 3 }
	:: atomic { w_pc == 3 -> r1 = b1; w_pc = 4 }
	:: atomic { w_pc == 4 && !w_mine -> w_pc = 0; w_key = 0 }
	:: atomic { d_pc == 1 -> d_name = r_key; d_pc = 2 }
	:: atomic { d_pc == 2 -> b0 = r0; d_pc = 3 }
	:: atomic { d_pc == 3 -> b1 = r1; d_pc = 4 }
	:: atomic { d_pc == 4 && !d_mine -> d_pc = 0; d_key = 0; d_name = 0 }
	od
}

#define UP(p) (pc == p)
#ifdef BREAK_IOFENCE
#define LANDED true
#else
#define LANDED (d_pc == 0)
#endif
#define QUIET (w_pc == 0)               /* nobody's write is under way there */

proctype Daemon()
{
	byte pc, k;

	do
	/* a block is published by a writer: both bytes are its own */
	:: atomic { UP(0) && st == FREE && LANDED -> if :: k = 1 :: k = 2 fi; b0 = k; pc = 1 }
	:: atomic { UP(1) -> b1 = k; pc = 2 }
	:: atomic { UP(2) -> assert(b0 == k && b1 == k); key = k; st = PUB; k = 0; pc = 0 }
	/* it is evicted */
#ifdef BREAK_IO
	:: atomic { UP(0) && st == PUB -> st = FREE; key = 0 }
#else
	:: atomic { UP(0) && st == PUB && !io -> st = FREE; key = 0 }
#endif
	/* it is written; what lay there is forgotten first */
	:: atomic { UP(0) && st == PUB && QUIET && !io -> cold = 0; io = true; w_key = key; w_mine = true; w_pc = 1 }
	:: atomic { UP(0) && w_pc == 4 && w_mine ->
		assert(r_key == w_key && r0 == w_key && r1 == w_key);           /* what is written is what was published */
		cold = w_key; io = false; w_pc = 0; w_key = 0; w_mine = false }
	/* it is read back */
	:: atomic { UP(0) && st == FREE && cold != 0 && d_pc == 0 -> st = RESTORING; d_key = cold; d_mine = true; d_pc = 1 }
	:: atomic { UP(0) && d_pc == 4 && d_mine -> pc = 10 }
	:: atomic { UP(10) ->
		if
#ifdef BREAK_NAME
		:: d_name == b0 && b0 == b1 -> key = d_key; st = PUB
		:: !(d_name == b0 && b0 == b1) -> st = FREE
#elif defined(BREAK_SUM)
		:: d_name == d_key -> key = d_key; st = PUB
		:: d_name != d_key -> st = FREE
#else
		:: d_name == d_key && b0 == d_name && b1 == d_name -> key = d_key; st = PUB
		:: !(d_name == d_key && b0 == d_name && b1 == d_name) -> st = FREE
#endif
		fi;
		assert(st == FREE || (b0 == key && b1 == key));                 /* never other bytes */
		d_pc = 0; d_key = 0; d_name = 0; d_mine = false; pc = 0 }
	/* a slot a dead daemon's read was bound for */
	:: atomic { UP(0) && st == RESTORING && !d_mine && LANDED -> st = FREE }

	/* kill -9; the next one learns from the disk what lies there */
	:: atomic { dkills < DKILLS && pc < 100 -> dkills++; w_mine = false; d_mine = false; io = false; k = 0; pc = 100 }
	:: atomic { UP(100) -> cold = r_key; pc = 0 }
	od
}

init { atomic { run Disk(); run Daemon() } }
