package broker

import "syscall"

// idleFiles returns how many segment files may stay open without being in use: at most half of what the process may have open, so
// that many partitions never use up the descriptors that connections and metadata need.
func idleFiles(most int) int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return most
	}
	return shareOf(limit.Cur, most)
}

func shareOf(limit uint64, most int) int {
	if half := limit / 2; half < uint64(most) { // #nosec G115 -- positive
		return max(int(half), 1) // #nosec G115 -- below most
	}
	return most
}
