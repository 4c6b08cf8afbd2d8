//go:build !linux

package devcluster

import "syscall"

func childAttributes(bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func lockThread(bool) {}
