// Package liveness decides which brokers are suspected to be dead, and which suspicions are good enough to act on. It is pure: beats,
// refusals and the time go in, a View comes out; sockets and timers are the shell's.
//
// An election is always safe, because epochs fence whoever was deposed; a wrong suspicion costs a short interruption and never a record.
// That is why detection may be quick. What it must not be is contagious: a broker that is cut off, or was itself asleep, would suspect
// everybody. Hence the rules, with counts over the live registrations:
//
//   - A broker is suspected after SuspectAfter without a beat, at once when its connection broke and a new one is refused (nobody listens
//     there any more), and when its beats say that a sync of its disk has not finished for HungSync.
//   - With three or more registrations a suspicion is confirmed when a second broker, whose beats arrive, has it too. Whoever hears under
//     half of the others confirms nothing. With two, silence proves nothing, since it may be one's own; a refusal does, and so does what
//     the other says of its own disk. With one there is nothing to suspect. What is not confirmed is left to the lease.
//   - Whoever notices that its own timer was late starts all timers anew.
//   - A suspicion that turns out false soon after makes the next one of that broker slower, up to eight times; that wears off.
//
// State belongs to a registration: under a new broker epoch a broker starts with a clean slate, and what beats of an earlier one say is
// ignored. A registration that lapsed while its broker beats on is remembered, so that a lapsed lease alone moves nothing.
package liveness
