package devcluster

import (
	"runtime"
	"syscall"
)

func childAttributes(tied bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if tied {
		attr.Pdeathsig = syscall.SIGTERM
	}
	return attr
}

// lockThread keeps the thread that forks alive until the child has ended: the kernel sends Pdeathsig when that thread goes.
func lockThread(tied bool) {
	if tied {
		runtime.LockOSThread()
	}
}
