package vfs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func syncFile(f *os.File) error { return withFd(f, "fdatasync", unix.Fdatasync) }

func syncVolume(dir *os.File) error { return withFd(dir, "syncfs", unix.Syncfs) }

// withFd runs a system call on the descriptor of f, which a concurrent Close
// cannot recycle meanwhile, and repeats it when a signal interrupts it.
func withFd(f *os.File, op string, call func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return &fs.PathError{Op: op, Path: f.Name(), Err: err}
	}
	var callErr error
	err = conn.Control(func(fd uintptr) {
		for {
			callErr = call(int(fd))
			if !errors.Is(callErr, syscall.EINTR) {
				return
			}
		}
	})
	if err != nil {
		return &fs.PathError{Op: op, Path: f.Name(), Err: fs.ErrClosed}
	}
	if callErr != nil {
		return &fs.PathError{Op: op, Path: f.Name(), Err: callErr}
	}
	return nil
}

// startWriteback starts asynchronous writing of the dirty pages in a range. It
// can block when the device queue is full. File systems without it are fine:
// the call is a hint.
func startWriteback(f *os.File, off, n int64) error {
	err := withFd(f, "sync_file_range", func(fd int) error {
		return unix.SyncFileRange(fd, off, n, unix.SYNC_FILE_RANGE_WRITE)
	})
	if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ESPIPE) {
		return nil
	}
	return err
}

// syncfsReportsErrors tells whether the kernel is 5.8 or newer, the first one
// whose syncfs returns write errors that happened since the descriptor was
// opened.
func syncfsReportsErrors() bool {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return false
	}
	return kernelAtLeast(unix.ByteSliceToString(uts.Release[:]), 5, 8)
}

// kernelAtLeast compares a kernel release such as "6.1.0-13-amd64".
func kernelAtLeast(release string, major, minor int) bool {
	first, rest, ok := strings.Cut(release, ".")
	if !ok {
		return false
	}
	end := 0
	for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
		end++
	}
	gotMajor, errMajor := strconv.Atoi(first)
	gotMinor, errMinor := strconv.Atoi(rest[:end])
	if errMajor != nil || errMinor != nil {
		return false
	}
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}

func statfs(dir string) (unix.Statfs_t, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if !errors.Is(err, syscall.EINTR) {
			return st, err
		}
	}
}

func diskUsage(dir string) (Usage, error) {
	st, err := statfs(dir)
	if err != nil {
		return Usage{}, err
	}
	// statfs(2) counts in fragments; f_bsize is only the preferred I/O size.
	unit := int64(st.Frsize)
	if unit == 0 {
		unit = int64(st.Bsize)
	}
	return Usage{Total: int64(st.Blocks) * unit, Free: int64(st.Bavail) * unit}, nil
}

type fsKind struct {
	name    string
	network bool
}

const fuseMagic = 0x65735546

// fsKinds maps f_type of statfs(2) to names. Cluster file systems count as
// network: their locks and syncs have the same weaknesses.
var fsKinds = map[uint32]fsKind{
	0xEF53:     {"ext4", false},
	0x58465342: {"xfs", false},
	0x9123683E: {"btrfs", false},
	0x2FC12FC1: {"zfs", false},
	0xF2F52010: {"f2fs", false},
	0xCA451A4E: {"bcachefs", false},
	0x01021994: {"tmpfs", false},
	0x858458F6: {"ramfs", false},
	0x794C7630: {"overlay", false},
	0x3153464A: {"jfs", false},
	0x52654973: {"reiserfs", false},
	0x5346544E: {"ntfs", false},
	0x4D44:     {"vfat", false},
	0x2011BAB0: {"exfat", false},
	0x6969:     {"nfs", true},
	0xFF534D42: {"cifs", true},
	0xFE534D42: {"smb2", true},
	0x517B:     {"smb", true},
	0x564C:     {"ncp", true},
	0x00C36400: {"ceph", true},
	0x01021997: {"9p", true},
	0x5346414F: {"afs", true},
	0x6B414653: {"afs", true},
	0x73757245: {"coda", true},
	0x0BD00BD0: {"lustre", true},
	0x47504653: {"gpfs", true},
	0x19830326: {"beegfs", true},
	0x01161970: {"gfs2", true},
	0x7461636F: {"ocfs2", true},
	0x786F4256: {"vboxsf", true},
	0xAAD7AAEA: {"panfs", true},
}

// localFuse lists the users of FUSE that keep their data on this machine. Any
// other one (sshfs, glusterfs, s3fs, …) is taken for a network file system.
var localFuse = map[string]bool{
	"virtiofs": true, "fuseblk": true, "fuse.overlayfs": true, "fuse.fuse-overlayfs": true,
	"fuse.ntfs-3g": true, "fuse.bindfs": true, "fuse.mergerfs": true,
}

func fileSystem(dir string) (kind string, network bool, err error) {
	st, err := statfs(dir)
	if err != nil {
		return "", false, err
	}
	magic := uint32(st.Type) // signed or wider on some architectures
	if magic == fuseMagic {
		kind = mountedAs(dir)
		return kind, !localFuse[kind], nil
	}
	if k, ok := fsKinds[magic]; ok {
		return k.name, k.network, nil
	}
	return fmt.Sprintf("0x%x", magic), false, nil
}

// mountedAs finds the type of the mount that holds dir, such as
// "fuse.sshfs"; "fuse" if it cannot be told.
func mountedAs(dir string) string {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "fuse"
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "fuse"
	}
	dev := uint64(st.Dev)
	return mountType(table, fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev)))
}

// mountType looks up a device in the format of /proc/self/mountinfo:
//
//	36 35 98:0 /root /mount options optional… - type source options
func mountType(table []byte, device string) string {
	lines := bufio.NewScanner(bytes.NewReader(table))
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		if !ok {
			continue
		}
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) > 2 && left[2] == device && len(right) > 0 {
			return right[0]
		}
	}
	return "fuse"
}
