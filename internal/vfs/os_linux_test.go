package vfs

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestKernelAtLeast(t *testing.T) {
	for release, want := range map[string]bool{
		"5.8.0": true, "5.8": true, "5.10.0-8-amd64": true, "6.1.0": true, "10.0-rc1": true, "5.8-rc1": true,
		"5.7.19": false, "4.19.0": false, "": false, "6": false, "x.y": false, "5.": false,
	} {
		if got := kernelAtLeast(release, 5, 8); got != want {
			t.Errorf("kernelAtLeast(%q) = %v, want %v", release, got, want)
		}
	}
}

func TestMountType(t *testing.T) {
	const table = `36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw
37 35 0:44 / /net rw - fuse.sshfs host:/ rw
38 35 0:45 /sub /shared rw shared:2 master:3 - virtiofs tag rw
broken line
`
	for device, want := range map[string]string{
		"98:0": "ext3", "0:44": "fuse.sshfs", "0:45": "virtiofs", "1:1": "fuse",
	} {
		if got := mountType([]byte(table), device); got != want {
			t.Errorf("mountType(%s) = %q, want %q", device, got, want)
		}
	}
}

func TestFileSystemKinds(t *testing.T) {
	kind, network, err := OS().FileSystem("/proc")
	if err != nil || kind == "" || network {
		t.Fatalf("/proc is %q, network %v, error %v", kind, network, err)
	}
	if k := fsKinds[uint32(unix.NFS_SUPER_MAGIC)]; k.name != "nfs" || !k.network {
		t.Errorf("nfs is %+v", k)
	}
	if k := fsKinds[uint32(unix.EXT4_SUPER_MAGIC)]; k.name != "ext4" || k.network {
		t.Errorf("ext4 is %+v", k)
	}
}

func TestVolumeSupportedHere(t *testing.T) {
	v, err := OS().OpenVolume(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if v.Supported() != syncfsReportsErrors() {
		t.Errorf("supported is %v", v.Supported())
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
}
