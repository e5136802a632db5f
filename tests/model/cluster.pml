/* The lease, the fence and the reap of the cluster. README.md says what is modelled. */
#ifndef LOST
#define LOST 1      /* calls that go wrong */
#endif
#ifndef FAILOVERS
#define FAILOVERS 1
#endif
#ifndef OUTAGES
#define OUTAGES 0
#endif
#ifndef AWAYS
#define AWAYS 1     /* times that a process dies, is paused or cut off */
#endif
#ifndef CHANGES
#define CHANGES 0   /* sessions that end */
#endif
#ifndef P
#define P 2
#endif
#ifndef WAIT
#define WAIT 1      /* ticks that a call without an answer costs */
#endif
#define N 3

#define BEAT 2
#define QUIET 3
#define GAP 4       /* first tick at which contact was lost for more than a quarter */
#define LEASE 12
#define AGAIN 4     /* a replaced process asks again */

#ifdef NAMES
#define name_of(i) (i == 2 -> 1 : i)
#define OLD_AGE LEASE
#else
#define name_of(i) i
#define OLD_AGE QUIET
#endif
#ifndef BOUND_LIVE
#define BOUND_LIVE 10
#endif
#ifndef BOUND
#define BOUND 26
#endif

/* Redis: states of a host */
#define NONE 0
#define LIVE 1
#define LISTING 2
#define FENCED 3
/* a process: modes of a partition */
#define BEGINNING 0
#define ASSERTING 1
#define FOLLOWING 2
/* functions */
#define F_NONE 0
#define F_BEGIN 1
#define F_ASSERT 2
#define F_APPLY 3
#define F_FENCE 4
#define F_LOOK 5
#define F_REAP 6
/* answers */
#define FAILED 0
#define OK 1
#define KEEP 2
#define RESET 3
#define EPOCH 4
#define REPLACED 5
#define REFUSED 6
#define A_GAP 7
#define BEHIND 8
/* faults of a call */
#define FINE 0
#define REQUEST 1
#define REPLY 2
#define LATE 3
#define TWICE 4
/* a process */
#define UP 0
#define PAUSED 1
#define CUT 2
#define DEAD 3
/* the clock of a server */
#define GOOD 0
#define BACK 1      /* all beats are ahead of it */
#define TAKE 255

typedef Host {
  byte st; byte epoch; byte nonce; byte inc; byte last; byte beat; byte age;
  byte log;
  byte s[2];    /* its sessions: the incarnation of each; 0: none */
  byte owned;   /* how many of them it has by its own count */
  byte reaped   /* its incarnations that were lost, as bits: what the assertions know */
}
typedef Data { Host h[N] }
typedef Server { Data d; bit down; bit looked; bit clock }
typedef Part {
  byte mode; byte epoch; byte nonce; byte inc; byte last; byte pieces; byte seq;
  byte heard; bit maytake; bit maykeep; byte rival; byte rage; byte bt; byte retry;
  byte contact; bit reap; bit cursor; bit hurt;
  byte sb[N]; byte st[N]
}
typedef Proc {
  byte life; byte epoch; byte nonce; bit stopped; bit maytake; byte newest;
  Part p[P]
}
typedef Call {
  byte fn; byte p; byte n; byte epoch; byte nonce; byte inc; byte prev; byte last;
  byte log; bit keep; byte take; byte mine; byte other; byte beat; byte seq
}
Server R[P];
Proc H[N];
Data copy; byte copy_of;      /* what the replica has, if it lags: of partition copy_of - 1 */
Call slow;                     /* arrives some time */
bit fresh;          /* a fault has just happened */
byte cp; byte turns;           /* the partition whose turn it is; hosts that had theirs */
byte lost = LOST, failovers = FAILOVERS, aways = AWAYS, changes = CHANGES, outages = OUTAGES;
byte changed_in;               /* the partition of the change */
byte nonces;
byte peace;          /* ticks since the last fault, plus 1 */
bit order;           /* the order of the hosts matters now */

hidden Call q;
hidden byte word, a_epoch, a_last, a_inc, a_nonce, a_beat, a_before, a_stale;
byte i, j, flt, tgt, early;   /* of a choice; 0 between steps */
hidden byte k, v;
hidden byte fnd;
hidden byte has_reaped, is_unseen;
hidden byte qn[N];             /* look: beats of quiet hosts */

#define HN R[q.p].d.h[q.n]
#define OTHER R[q.p].d.h[q.other]
#define PT H[i].p[cp]
#define STRAY(a, b) (R[q.p].d.h[a].s[b] && R[q.p].d.h[a].s[b] != R[q.p].d.h[a].inc)
#define HAS_STRAY(a) (R[q.p].d.h[a].st == LIVE && (STRAY(a, 0) || STRAY(a, 1)))

/* --- protections, each with a switch that takes it out ---------------------------- */

#ifdef WALL_BACK      /* the wall clock of a host was set back before it restarts */
#define CLOCK_S 0
#else
#define CLOCK_S (nonces * 8)
#endif
#ifdef REDIS_BACK     /* the clock of Redis is far behind the beats that it has, from the start */
#define CLOCK BACK
#else
#define CLOCK GOOD
#endif
#ifdef REDIS_AHEAD    /* it jumps far ahead, when Redis is away or fails over */
#define JUMPS_AHEAD true
#else
#define JUMPS_AHEAD false
#endif
#ifdef NO_WATCH       /* Redis' clock alone says who is lost */
#define WATCH 0
#else
#define WATCH LEASE
#endif
#ifdef NO_CONTACT     /* a fence is sent after a gap in contact */
#define LOST_CONTACT false
#else
#define LOST_CONTACT (PT.contact >= GAP)
#endif
#ifdef NO_HEARD       /* a fence does not look at the beat of the host */
#define WAS_HEARD false
#define KNOWS false
#else
#define KNOWS true
#define WAS_HEARD (OTHER.beat != q.beat)
#endif
#ifdef NO_BEHIND      /* a failover that lost the observer's beats proves nothing */
#define IS_BEHIND (HN.st != LIVE)
#define MISSED_BEAT false
#else
#define IS_BEHIND (HN.st != LIVE || HN.beat != q.mine)
#define MISSED_BEAT (a_before != PT.heard)
#endif
#ifdef NO_CALLER      /* calls of earlier processes and incarnations are taken */
#define IS_CALLER true
#else
#define IS_CALLER (HN.epoch == q.epoch && HN.nonce == q.nonce && HN.inc == q.inc)
#endif
#ifdef NO_GAP         /* calls that do not continue where the last one ended are taken */
#define HAS_GAP false
#else
#define HAS_GAP (HN.last != q.prev)
#endif
#ifdef NO_REPLACED    /* any process takes the name */
#define IS_REPLACED false
#else
#define IS_REPLACED (HN.st != NONE && HN.st != FENCED && HN.nonce > q.nonce && q.take != TAKE && HN.beat != q.take)
#endif
#ifdef NO_COUNT       /* sessions of a host that is reaped are missed */
#define IS_COUNTED true
#else
#define IS_COUNTED (HN.st != FENCED)
#endif
#ifdef NO_STALE       /* a look does not see that a lost host is to be reaped */
#define IS_STALE(a) false
#else
#define IS_STALE(a) (R[q.p].d.h[a].st == FENCED)
#endif
#ifdef NO_FENCED      /* a lost host lists on */
#define IS_LISTING (HN.st == LISTING || HN.st == FENCED)
#else
#define IS_LISTING (HN.st == LISTING)
#endif
#ifdef REAP_LISTING   /* a reap does not wait for the list of a host */
#define IS_SPENT(a) (R[q.p].d.h[a].s[q.prev] != R[q.p].d.h[a].inc)
#else
#define IS_SPENT(a) (R[q.p].d.h[a].st == LIVE && R[q.p].d.h[a].s[q.prev] != R[q.p].d.h[a].inc)
#endif

/* --- the functions on Redis ------------------------------------------------------- */

#define REF_SUS(a, b) (H[a].p[q.p].sb[b] == v)
#define REF_OWN(a, b) (name_of(a) == b && (H[a].p[q.p].heard == v || H[a].p[q.p].rival == v))
#define REF_SLOW(b) (slow.fn && slow.p == q.p && ((slow.n == b && (slow.mine == v || slow.take == v)) || (slow.fn == F_FENCE && slow.other == b && slow.beat == v)))
#define REF_OTHERS(b) ((copy_of == q.p + 1 && copy.h[b].beat == v) || REF_SUS(0, b) || REF_SUS(1, b) || REF_SUS(2, b) || REF_SLOW(b))
#define REF(b) (R[q.p].d.h[b].beat == v || REF_OTHERS(b) || REF_OWN(0, b) || REF_OWN(1, b) || REF_OWN(2, b))
#define REF_RIVAL(a, b) (name_of(a) == b && (H[a].p[q.p].rival == v || (a != i && H[a].p[q.p].heard == v)))

/* A beat that no other is equal to, whatever the clock does. */
inline note_beat() {
  v = 1;
  do :: REF(q.n) -> v++ :: else -> break od;
  HN.beat = v;
  HN.age = 0; v = 0; a_beat = HN.beat
}

/* The host writes a session: it must not be of an incarnation that was reaped. (d) */
inline write_session(kk) {
  assert(!(HN.reaped & (1 << q.inc)));
  if :: HN.s[kk] != q.inc -> HN.owned++ :: else fi;
  HN.s[kk] = q.inc
}

/* Incarnations compare within one name only: it is the lowest that nobody has. After a
 * failover Redis may give one again that a process or a slow call has. */
#define HAS_INC(h_) (h_.inc == v || h_.s[0] == v || h_.s[1] == v)
#define KNOWS_INC(a) (name_of(a) == q.n && H[a].p[q.p].inc == v)
#define COPY_HAS_INC (copy_of == q.p + 1 && HAS_INC(copy.h[q.n]))
#define SLOW_HAS_INC (slow.fn && slow.p == q.p && slow.n == q.n && slow.inc == v)
#define ANYBODY_KNOWS_INC (KNOWS_INC(0) || KNOWS_INC(1) || KNOWS_INC(2) || SLOW_HAS_INC)
inline new_incarnation() {
  v = 1;
  do
  :: HAS_INC(HN) || COPY_HAS_INC || (failovers == FAILOVERS && ANYBODY_KNOWS_INC) -> v++
  :: else -> break
  od;
  HN.inc = v; v = 0
}

inline f_begin() {
  if
  :: IS_REPLACED -> word = REPLACED; a_epoch = HN.epoch; a_beat = HN.beat
  :: else ->
     if
     :: HN.st != NONE && HN.epoch >= q.epoch -> word = EPOCH; a_epoch = HN.epoch
     :: else ->
#ifdef NAMES
        /* (e): an older process takes the name only from one that was silent for a lease. */
        assert(HN.st == NONE || HN.st == FENCED || HN.nonce <= q.nonce || q.take == TAKE || HN.age >= LEASE - 1);
#endif
        if :: HN.st != NONE && HN.nonce != q.nonce && HN.nonce + 1 > q.nonce -> q.nonce = HN.nonce + 1
           :: else fi;
        a_nonce = q.nonce;
        if
        :: q.keep && HN.st == LIVE && HN.log == q.log && HN.last <= q.last ->
           HN.epoch = q.epoch; HN.nonce = q.nonce;
           word = KEEP; a_last = HN.last; a_inc = HN.inc
        :: else ->
           if
           :: HN.st == NONE || HN.log != q.log || (HN.inc && (HN.s[0] == HN.inc || HN.s[1] == HN.inc)) ->
              new_incarnation()
           :: else   /* without a session it is as good as a new one */
           fi;
           HN.reaped = HN.reaped & ~(1 << HN.inc);
           HN.epoch = q.epoch; HN.nonce = q.nonce; HN.log = q.log; HN.st = LISTING; HN.last = 0;
           HN.owned = 0;
           word = RESET; a_inc = HN.inc
        fi
     fi
  fi
}

inline f_caller() {
  if :: HN.st == NONE -> word = REFUSED
     :: HN.st != NONE && !IS_CALLER -> word = EPOCH; a_epoch = HN.epoch
     :: else ->
        word = OK;
        assert(!IS_COUNTED || (HN.s[0] != 0) + (HN.s[1] != 0) >= HN.owned)   /* (g) */
  fi
}

inline f_assert() {
  f_caller();
  if
  :: word != OK
  :: word == OK && !IS_LISTING -> word = REFUSED
  :: word == OK && IS_LISTING && HN.last != q.prev -> word = A_GAP; a_last = HN.last
  :: else ->
     if :: !(q.prev == 0 && changed_in == q.p + 1 && q.seq) -> write_session(q.prev)
        :: else -> skip fi;
     if :: q.prev == 1 -> HN.st = LIVE; HN.last = q.seq
        :: else -> HN.last = HN.last + 1 fi;

  fi
}

inline f_apply() {
  f_caller();
  if
  :: word != OK
  :: word == OK && HN.st != LIVE -> word = REFUSED
  :: word == OK && HN.st == LIVE && HAS_GAP -> word = A_GAP; a_last = HN.last
  :: else ->
     a_before = HN.beat;
     HN.last = q.last;
     if :: q.prev < q.last && changed_in == q.p + 1 && HN.s[0] == q.inc -> HN.s[0] = 0; HN.owned--
        :: else fi;

  fi
}

inline f_fence() {
  if
  :: IS_BEHIND -> word = BEHIND
  :: else ->
     if
     :: OTHER.st == NONE || OTHER.st == FENCED || WAS_HEARD -> word = REFUSED
     :: else ->
        word = OK;
        /* (a) */
        fnd = 0;
        for (k : 0 .. N - 1) {
          if :: name_of(k) == q.other && (H[k].life != UP || H[k].p[q.p].hurt) -> fnd = 1 :: else fi
        }
        assert(fnd);
        OTHER.st = FENCED;
        OTHER.reaped = OTHER.reaped | (1 << OTHER.inc)
     fi
  fi
}

inline f_look() {
  a_stale = 0;
  for (k : 0 .. N - 1) { qn[k] = 0 }
  if
  :: R[q.p].looked -> word = REFUSED   /* later */
  :: else ->
     word = OK; R[q.p].looked = 1;
     for (k : 0 .. N - 1) {
       if
       :: IS_STALE(k) -> a_stale = 1
       :: R[q.p].d.h[k].st == LIVE || R[q.p].d.h[k].st == LISTING ->
          if :: HAS_STRAY(k) -> a_stale = 1
             :: else fi;
          if :: k != q.n && (R[q.p].d.h[k].age >= QUIET || R[q.p].clock == BACK) -> qn[k] = R[q.p].d.h[k].beat
             :: else fi
       :: else
       fi
     }
  fi
}

/* One step: sessions number q.prev of all hosts. */
inline f_reap() {
  word = OK; a_stale = 0; R[q.p].looked = 1;
  for (k : 0 .. N - 1) {
    if
    :: R[q.p].d.h[k].s[q.prev] && (R[q.p].d.h[k].st == FENCED || R[q.p].d.h[k].st == NONE || IS_SPENT(k)) ->
       assert(R[q.p].d.h[k].st != LISTING);   /* (f) */
       R[q.p].d.h[k].s[q.prev] = 0
    :: else
    fi;
    if
    :: R[q.p].d.h[k].st == FENCED && !R[q.p].d.h[k].s[0] && !R[q.p].d.h[k].s[1] -> forget_host(R[q.p].d.h[k])
    :: R[q.p].d.h[k].st == FENCED && (R[q.p].d.h[k].s[0] || R[q.p].d.h[k].s[1]) -> a_stale = 1
    :: HAS_STRAY(k) -> a_stale = 1
    :: else
    fi
  }
}
inline forget_host(x_) {
  x_.st = NONE; x_.epoch = 0; x_.nonce = 0; x_.inc = 0; x_.last = 0; x_.beat = 0; x_.age = 0; x_.log = 0; x_.owned = 0
}

inline execute() {
  word = FAILED;
  if
  :: q.fn == F_BEGIN -> f_begin()
  :: q.fn == F_ASSERT -> f_assert()
  :: q.fn == F_APPLY -> f_apply()
  :: q.fn == F_FENCE -> f_fence()
  :: q.fn == F_LOOK -> f_look()
  :: q.fn == F_REAP -> f_reap()
  fi;
  if :: word == OK || word == KEEP || word == RESET || word == A_GAP ->
        if :: q.fn == F_BEGIN || q.fn == F_ASSERT || q.fn == F_APPLY ->
              note_beat();
              for (k : 0 .. N - 1) {
                if :: name_of(k) == q.n && H[k].life == UP -> H[k].p[q.p].hurt = 0 :: else fi
              }
           :: else fi
     :: else fi
}

inline copy_call(a, b) {
  b.fn = a.fn; b.p = a.p; b.n = a.n; b.epoch = a.epoch; b.nonce = a.nonce; b.inc = a.inc;
  b.prev = a.prev; b.last = a.last; b.log = a.log; b.keep = a.keep; b.take = a.take;
  b.mine = a.mine; b.other = a.other; b.beat = a.beat; b.seq = a.seq
}
inline zero_call(b) {
  b.fn = 0; b.p = 0; b.n = 0; b.epoch = 0; b.nonce = 0; b.inc = 0; b.prev = 0; b.last = 0;
  b.log = 0; b.keep = 0; b.take = 0; b.mine = 0; b.other = 0; b.beat = 0; b.seq = 0
}

/* Makes the call in q: word is its answer, FAILED if there is none. */
inline make_call() {
  q.p = cp; q.n = name_of(i); is_unseen = 0;
  if
  :: R[cp].down || H[i].life == CUT -> word = FAILED; is_unseen = 1
  :: else ->
     if
     :: flt && q.fn == tgt && lost ->
        lost--; fresh = 1;
        if :: flt == LATE || flt == TWICE -> copy_call(q, slow) :: else fi;
        if :: flt == REPLY || flt == TWICE -> execute() :: else fi;
        if :: flt != TWICE -> word = FAILED :: else fi;
        is_unseen = (flt == REQUEST);
        flt = FINE
     :: else -> execute()
     fi
  fi;
  if
  :: word == FAILED -> PT.retry = WAIT
  :: else ->
     if :: PT.contact >= GAP -> clear_suspects() :: else fi;
     PT.contact = 0
  fi
}

/* --- a process -------------------------------------------------------------------- */

inline clear_suspects() { for (k : 0 .. N - 1) { PT.sb[k] = 0; PT.st[k] = 0 } }

inline restart_part() {
  PT.mode = BEGINNING; PT.pieces = 0; PT.seq = 0; PT.bt = 0; PT.reap = 0; PT.inc = 0; PT.heard = 0;
  PT.last = 0; PT.epoch = 0; PT.nonce = 0; PT.cursor = 0;
  clear_suspects()
}

inline stop_all() {
  H[i].stopped = 1; H[i].maytake = 0
}

inline head(f) {
  q.fn = f; q.epoch = PT.epoch; q.nonce = PT.nonce; q.inc = PT.inc; q.last = H[i].newest
}

/* Which call is next; none: q.fn is 0. */
inline next_call() {
  zero_call(q);
  if
  :: PT.retry
  :: !PT.retry && PT.mode == BEGINNING ->
     H[i].epoch++; PT.epoch = H[i].epoch;
     head(F_BEGIN);
     q.nonce = H[i].nonce; q.log = i + 1; q.keep = PT.maykeep;
     if
     :: PT.maytake && H[i].maytake -> q.take = TAKE
     :: else ->
        if :: PT.rival && PT.rage >= LEASE -> q.take = PT.rival :: else fi
     fi
  :: !PT.retry && PT.mode != BEGINNING && H[i].stopped -> restart_part()
  :: !PT.retry && PT.mode == ASSERTING && !H[i].stopped ->
     if :: PT.pieces == 0 -> PT.seq = H[i].newest :: else fi;
     head(F_ASSERT); q.prev = PT.pieces; q.seq = PT.seq
  :: !PT.retry && PT.mode == FOLLOWING && !H[i].stopped ->
     if :: LOST_CONTACT -> clear_suspects() :: else fi;
     for (j : 0 .. N - 1) {
       if :: PT.sb[j] && PT.st[j] == 0 -> q.other = j; q.beat = PT.sb[j] :: else fi
     }
     if
     :: (PT.bt == 0 || PT.last != H[i].newest) && !(early && q.beat) ->
        q.other = 0; q.beat = 0;
        head(F_APPLY); q.prev = PT.last
     :: else ->
        if
        :: q.beat -> q.fn = F_FENCE; q.mine = PT.heard; PT.sb[q.other] = 0
        :: else ->
           if :: !R[cp].looked && !PT.reap -> q.fn = F_LOOK
              :: PT.reap && !has_reaped -> q.fn = F_REAP; q.prev = PT.cursor; has_reaped = 1
              :: else fi
        fi
     fi
  fi
}

inline take_begin() {
  if
  :: word == FAILED ->
     PT.rival = 0; PT.rage = 0;
     if :: is_unseen -> H[i].epoch--; PT.epoch = 0 :: else fi
  :: word == KEEP || word == RESET ->
     H[i].stopped = 0; PT.maytake = 0; PT.rival = 0; PT.rage = 0;
     PT.inc = a_inc; PT.nonce = a_nonce; PT.heard = 0; PT.pieces = 0;
     if :: a_nonce > H[i].nonce -> H[i].nonce = a_nonce :: else fi;
     if
     :: word == KEEP -> PT.last = a_last; PT.mode = FOLLOWING; PT.bt = 0
     :: else -> PT.maykeep = 1; PT.mode = ASSERTING
     fi
  :: word == EPOCH ->
     if :: a_epoch > H[i].epoch -> H[i].epoch = a_epoch :: else fi
  :: word == REPLACED ->
     PT.retry = AGAIN;
     if :: PT.rival != a_beat -> PT.rival = a_beat; PT.rage = 0 :: else fi;
     H[i].epoch--; PT.epoch = 0;
     stop_all()
  fi
}

inline take_assert() {
  if
  :: word == FAILED -> PT.maykeep = 0
  :: word == OK ->
     PT.pieces++;
     if :: PT.pieces == 2 -> PT.mode = FOLLOWING; PT.last = PT.seq; PT.bt = 0; PT.pieces = 0; PT.seq = 0
        :: else fi
  :: else -> skip
  fi
}

inline take_apply() {
  if
  :: word == OK ->
     if :: MISSED_BEAT -> clear_suspects() :: else fi;
     PT.heard = a_beat; PT.last = q.last; PT.bt = BEAT;
     /* Redis and its host agree: the lowest number that nobody else has says the same. */
     if
     :: HN.beat == a_beat ->
        v = 1;
        do
        :: REF_OTHERS(q.n) || REF_RIVAL(0, q.n) || REF_RIVAL(1, q.n) || REF_RIVAL(2, q.n) -> v++
        :: else -> break
        od;
        HN.beat = v; PT.heard = v; v = 0
     :: else
     fi
  :: word == A_GAP ->
     clear_suspects();
     if :: a_last > H[i].newest -> PT.maykeep = 0; word = REFUSED
        :: else -> PT.last = a_last; PT.bt = 0 fi
  :: else
  fi
}

inline take_look() {
  if
  :: word == OK ->
     for (k : 0 .. N - 1) {
       if :: qn[k] && PT.sb[k] != qn[k] -> PT.sb[k] = qn[k]; PT.st[k] = WATCH
          :: else fi
     }
     PT.reap = a_stale
  :: else
  fi
}

/* What the answer of a call of its own incarnation means, if it is refused. */
inline take_refusal() {
  if
  :: q.fn == F_ASSERT && word != OK || q.fn == F_APPLY && (word == EPOCH || word == REFUSED) ->
     if :: word == EPOCH && a_epoch > H[i].epoch -> stop_all() :: else fi;
     if :: word == A_GAP -> PT.maykeep = 0 :: else fi;
     restart_part()
  :: else
  fi
}

inline take_answer() {
  if
  :: q.fn == F_BEGIN -> take_begin()
  :: q.fn == F_ASSERT -> take_assert()
  :: q.fn == F_APPLY -> take_apply()
  :: q.fn == F_FENCE && word == BEHIND -> clear_suspects()
  :: q.fn == F_FENCE && word == OK -> PT.reap = 1
  :: q.fn == F_LOOK -> take_look()
  :: q.fn == F_REAP && word == OK -> PT.cursor = 1 - PT.cursor; PT.reap = a_stale
  :: else
  fi;
  take_refusal()
}

/* What a process does in a tick: a call to begin or to list, or all that is due. */
inline turn() {
  if
  :: H[i].life == DEAD || H[i].life == PAUSED
  :: else ->
     has_reaped = 0;
     do
     :: next_call();
        if :: q.fn == F_NONE -> break :: else -> make_call(); take_answer() fi;
        if :: q.fn == F_BEGIN || q.fn == F_ASSERT || word == FAILED -> break :: else fi
     od
  fi
}

/* --- time ------------------------------------------------------------------------- */

#define NEWEST(a) (H[a].life != DEAD && !(IS_LED(a) && H[3 - a].nonce > H[a].nonce))
#define HAS(a, b) (R[b].d.h[name_of(a)].st == LIVE && R[b].d.h[name_of(a)].log == a + 1 && R[b].d.h[name_of(a)].last == H[a].newest && R[b].d.h[name_of(a)].s[1] == R[b].d.h[name_of(a)].inc && R[b].d.h[name_of(a)].s[0] == ((changed_in == b + 1 && H[a].newest) -> 0 : R[b].d.h[name_of(a)].inc))
#define IS_LED(a) (name_of(2) == 1 && a && H[3 - a].life != DEAD)
#define NOBODY(a, b) (R[b].d.h[a].st == NONE && !R[b].d.h[a].s[0] && !R[b].d.h[a].s[1])

/* It follows and suspects nobody, or with that clock everybody, but for longer than it watches. */
#define IS_QUIET(part, b) (part.mode == FOLLOWING && part.heard && part.contact <= 1 && !part.reap && (R[b].clock == BACK -> peace > WATCH + GAP : !part.sb[0] && !part.sb[1] && !part.sb[2]))

/* Peace: no more faults. Within bounded time all is as it should be. */
inline judge() {
  peace++;
  fnd = 1;
  for (j : 0 .. P - 1) {
    for (i : 0 .. N - 1) {
      assert(peace < BOUND_LIVE || !NEWEST(i) || HAS(i, j));       /* (c) */
      assert(peace < BOUND || H[i].life != DEAD || IS_LED(i) || NOBODY(name_of(i), j));   /* (b) */
      assert(peace < BOUND || H[i].life == DEAD || NEWEST(i) || H[i].p[j].mode == BEGINNING);   /* (e) */
      if
      :: NEWEST(i) && !(HAS(i, j) && IS_QUIET(H[i].p[j], j)) -> fnd = 0
      :: H[i].life == DEAD && !IS_LED(i) && !NOBODY(name_of(i), j) -> fnd = 0
      :: H[i].life != DEAD && !NEWEST(i) && H[i].p[j].mode != BEGINNING -> fnd = 0
      :: else
      fi
    }
  };
  if :: fnd -> peace = BOUND + 1 :: else fi   /* it stays so */
}

/* A beat that moved never comes again, unless the replica has it: who watches it may as
 * well know now. */
inline forget_heard() {
  for (i : 0 .. N - 1) {
    for (j : 0 .. N - 1) {
      if
      :: KNOWS && PT.sb[j] && PT.sb[j] != R[cp].d.h[j].beat && !(copy_of == cp + 1 && copy.h[j].beat == PT.sb[j]) ->
         PT.sb[j] = 0; PT.st[j] = 0
      :: else
      fi
    }
  }
}

/* Epochs of a name compare with each other only: they become the lowest numbers with the same
 * order, if none is above that of its process. */
#define TOP(e) (e <= H[i].epoch)
#define SLOW (slow.fn && slow.n == i)
#define IS_TOP (name_of(2) + (i == 0) > 1 && H[i].life != DEAD && TOP(R[0].d.h[i].epoch) && TOP(R[P - 1].d.h[i].epoch) && TOP(copy.h[i].epoch) && !(SLOW && !TOP(slow.epoch)))
#define HAS_EPOCH(b) (v == H[i].p[b].epoch || v == R[b].d.h[i].epoch)
inline lower(x_) { if :: x_ == v -> x_ = word :: else fi }
inline lower_epochs() {
  for (i : 0 .. N - 1) {
    if
    :: IS_TOP ->
       word = 1;
       for (v : 1 .. H[i].epoch) {
         if
         :: HAS_EPOCH(0) || HAS_EPOCH(P - 1) || v == H[i].epoch || v == copy.h[i].epoch || (SLOW && v == slow.epoch) ->
            if
            :: word != v ->
               if :: SLOW -> lower(slow.epoch) :: else fi;
               lower(H[i].p[0].epoch); lower(R[0].d.h[i].epoch); lower(copy.h[i].epoch);
               lower_second();
               if :: H[i].epoch == v -> H[i].epoch = word; break :: else fi
            :: else
            fi;
            word++
         :: else
         fi
       };
       v = 0
    :: else
    fi
  }
}
#if P == 2
inline lower_second() { lower(H[i].p[1].epoch); lower(R[1].d.h[i].epoch) }
#else
inline lower_second() { skip }
#endif

inline dec(x) { if :: x -> x = x - 1 :: else fi }
inline tick() {
  for (j : 0 .. P - 1) {
    R[j].looked = 0;
    for (i : 0 .. N - 1) {
      if :: R[j].d.h[i].st && R[j].d.h[i].age < OLD_AGE -> R[j].d.h[i].age++ :: else fi;
      if :: H[i].life != DEAD ->
            dec(H[i].p[j].bt); dec(H[i].p[j].retry);
            if :: H[i].p[j].contact < GAP -> H[i].p[j].contact++ :: else fi;
            if :: H[i].p[j].rival && H[i].p[j].rage < LEASE -> H[i].p[j].rage++ :: else fi;
            for (k : 0 .. N - 1) { dec(H[i].p[j].st[k]) }
         :: else
      fi
    }
  }
  if :: copy_of ->
        for (i : 0 .. N - 1) { if :: copy.h[i].st && copy.h[i].age < OLD_AGE -> copy.h[i].age++ :: else fi }
     :: else fi;
  if :: peace -> judge() :: else fi
}

inline copy_host(a, b) {
  b.st = a.st; b.epoch = a.epoch; b.nonce = a.nonce; b.inc = a.inc; b.last = a.last;
  b.beat = a.beat; b.age = a.age; b.log = a.log; b.s[0] = a.s[0]; b.s[1] = a.s[1]; b.owned = a.owned; b.reaped = a.reaped
}
inline zero_host(b) { forget_host(b); b.s[0] = 0; b.s[1] = 0; b.reaped = 0 }

/* By Redis' clock every host was quiet for long. */
inline jump_ahead() {
  for (k : 0 .. N - 1) { if :: R[0].d.h[k].st -> R[0].d.h[k].age = QUIET :: else fi };
  order = 1; k = 0
}

inline start(m) {
  nonces++;
  H[m].life = UP; H[m].epoch = CLOCK_S; H[m].nonce = nonces * 8; H[m].stopped = 0; H[m].maytake = 1;
  for (k : 0 .. P - 1) {
    H[m].p[k].maytake = 1; H[m].p[k].maykeep = 1; H[m].p[k].contact = GAP
  }
}
inline stop_proc(m) {
  H[m].life = DEAD; H[m].epoch = 0; H[m].nonce = 0; H[m].stopped = 0; H[m].maytake = 0;
  for (k : 0 .. P - 1) {
    H[m].p[k].mode = 0; H[m].p[k].epoch = 0; H[m].p[k].nonce = 0; H[m].p[k].inc = 0; H[m].p[k].last = 0;
    H[m].p[k].pieces = 0; H[m].p[k].seq = 0; H[m].p[k].heard = 0; H[m].p[k].maytake = 0;
    H[m].p[k].maykeep = 0; H[m].p[k].rival = 0; H[m].p[k].rage = 0; H[m].p[k].bt = 0; H[m].p[k].retry = 0;
    H[m].p[k].contact = 0; H[m].p[k].reap = 0; H[m].p[k].cursor = 0; H[m].p[k].hurt = 1;
    for (j : 0 .. N - 1) { H[m].p[k].sb[j] = 0; H[m].p[k].st[j] = 0 }
  }
}

inline come_back(m) {
  if :: H[m].life == DEAD -> start(m) :: else -> H[m].life = UP fi
}
#define IS_AWAY(a) (H[a].life == PAUSED || H[a].life == CUT)

#define FOLLOWS(a) (name_of(2) == 2 || H[a].life || (H[a].p[0].mode == FOLLOWING && H[a].p[P - 1].mode == FOLLOWING))
#define IS_DUE(a) (PT.sb[a] && PT.st[a] == 0)
/* Whether peace may begin: nothing is under way that has to end. */
#define MAY_END (!peace && !(lost || failovers || aways || changes || outages) && cp == 0 && nonces >= N && !copy_of && !slow.fn && !R[0].down && !R[P - 1].down && !IS_AWAY(0) && !IS_AWAY(1) && !IS_AWAY(2))

active proctype world() {
  d_step {
    start(0); start(1);
#ifdef NAMES
    H[2].life = DEAD;
#else
    start(2);
#endif
    R[0].clock = CLOCK; order = 1; fresh = 1; k = 0
  }
  do
  :: peace > BOUND -> break
  /* All hosts have their turn in a partition, in any order; then in the next one. */
  :: atomic { (peace || !(fresh && MAY_END)) && peace <= BOUND ->
       if :: cp == 0 -> fresh = 0 :: else fi;
       do
       :: turns == 7 -> break
       :: turns != 7 ->
          if
          :: !(turns & 1) -> i = 0
          :: !(turns & 2) && (order || turns & 1) -> i = 1
          :: !(turns & 4) && (order || turns == 3) -> i = 2
          fi;
          flt = FINE; tgt = 0;
          if
          :: true
          :: !peace && lost && !R[cp].down && H[i].life == UP && PT.retry == 0 && (PT.mode != FOLLOWING || PT.bt == 0 || PT.reap || PT.sb[0] || PT.sb[1] || PT.sb[2]) ->
             if :: flt = REQUEST :: flt = REPLY
                :: !slow.fn -> flt = LATE :: !slow.fn -> flt = TWICE fi;
             if
             :: PT.mode == BEGINNING -> tgt = F_BEGIN
             :: PT.mode == ASSERTING -> tgt = F_ASSERT
             :: PT.mode == FOLLOWING && PT.bt == 0 -> tgt = F_APPLY
             :: PT.mode == FOLLOWING && (PT.sb[0] || PT.sb[1] || PT.sb[2]) -> tgt = F_FENCE
             :: PT.mode == FOLLOWING && PT.reap -> tgt = F_REAP
             fi
          fi;
          /* What is due first, once calls have failed, depends on what they were. */
          if
          :: true
          :: PT.mode == FOLLOWING && PT.bt == 0 && (IS_DUE(0) || IS_DUE(1) || IS_DUE(2)) -> early = 1
          fi;
          d_step { turns = turns | (1 << i); turn(); i = 0; flt = 0; tgt = 0; early = 0 }
       /* A call that was late. */
       :: d_step { slow.fn && slow.p == cp && !R[cp].down ->
            copy_call(slow, q); zero_call(slow); execute(); order = 1; fresh = 1; k = 0 }
       /* The replica of partition 0 lags from now on. */
       :: d_step { !peace && failovers && !copy_of && cp == 0 && !R[0].down ->
            copy_of = 1; order = 1;
            for (k : 0 .. N - 1) { copy_host(R[0].d.h[k], copy.h[k]) };
            k = 0 }
       od;
       d_step {
         turns = 0; forget_heard(); lower_epochs(); cp++;
         if :: cp == P -> cp = 0; tick() :: else fi;
         order = 0;
         for (j : 0 .. N - 1) {
           if :: H[j].life != DEAD && (H[j].life || H[j].p[cp].mode != FOLLOWING || H[j].p[cp].reap || H[j].p[cp].sb[0] || H[j].p[cp].sb[1] || H[j].p[cp].sb[2]) -> order = 1
              :: else fi;
           if :: R[cp].d.h[j].age >= QUIET - 1 -> order = 1 :: else fi
         };
         if :: slow.fn -> order = 1 :: else fi;
         i = 0; j = 0; k = 0 }
     }
  :: d_step { fresh && MAY_END ->
       peace = 1 }
  /* The call that was late never comes. */
  :: d_step { slow.fn && cp == 0 -> zero_call(slow); fresh = 1 }
  /* It takes over, at once or some time later, with a clock that is right, or far behind. */
  :: atomic { copy_of && cp == 0 ->
       d_step {
         failovers--; order = 1; fresh = 1;
         for (k : 0 .. N - 1) { copy_host(copy.h[k], R[0].d.h[k]); zero_host(copy.h[k]) };
         copy_of = 0; k = 0 }
       if :: true :: R[0].clock = BACK :: JUMPS_AHEAD -> d_step { jump_ahead() } fi;
       if :: true :: R[0].down = 1 fi
     }
  /* A server is away, and back. */
  :: d_step { !peace && outages && cp == 0 && !R[0].down -> outages--; R[0].down = 1 }
  :: d_step { cp == 0 && R[0].down ->
       R[0].down = 0; order = 1; fresh = 1;
       if :: JUMPS_AHEAD -> jump_ahead() :: else fi }
  /* A process dies, is paused, or is cut off: the last one, unless they differ by name. */
  :: atomic { !peace && aways && cp == 0 && (H[2].life == UP || name_of(2) == 1 && H[1].life == UP) ->
#ifdef NAMES
       if :: H[1].life == UP -> i = 1 :: H[2].life == UP -> i = 2 fi;
#else
       i = 2;
#endif
       aways--; order = 1; fresh = 1;
       if
       :: d_step { stop_proc(i); k = 0; j = 0 }
       :: H[i].life = PAUSED
       :: H[i].life = CUT
       fi;
       d_step { for (k : 0 .. P - 1) { H[i].p[k].hurt = 1 }; i = 0; k = 0 }
     }
  :: d_step { cp == 0 && !peace && H[2].life && FOLLOWS(1) -> come_back(2); order = 1; fresh = 1; k = 0 }
  :: d_step { cp == 0 && !peace && H[1].life -> come_back(1); order = 1; fresh = 1; k = 0 }
  /* A session of the first host ends, in one of the partitions. */
  :: d_step { !peace && changes && cp == 0 -> changes--; changed_in = 1; H[0].newest = 1; fresh = 1 }
  od
}
