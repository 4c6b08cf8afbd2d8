// Package version says which build of Runnel this is.
//
// Release builds set the three variables by linker flags (see the Makefile):
//
//	go build -ldflags "-X runnel.dev/runnel/internal/version.Version=v0.1.0"
//
// A build without them, `go install` or `go run` for example, falls back to what the Go toolchain recorded.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set by -ldflags -X; empty otherwise. Read them through Get.
var (
	// Version is the release or `git describe` name, such as v0.1.0 or v0.1.0-3-gabc1234.
	Version string
	// Commit is the git commit that was built.
	Commit string
	// Date is the commit's time in RFC 3339, not the build's, so that the same commit builds the same bytes.
	Date string
)

// Unknown stands for a fact that neither the linker flags nor the toolchain recorded.
const Unknown = "unknown"

// Info describes a build. Every field is set.
type Info struct {
	// Version is a release or `git describe` name, "devel" for an unreleased build without linker flags.
	Version string `json:"version"`
	// Commit is a git commit, with "-dirty" behind it when the tree had changes, or Unknown.
	Commit string `json:"commit"`
	// Date is the commit's time in RFC 3339, or Unknown.
	Date string `json:"date"`
	// Go is the toolchain's version, such as go1.26.0.
	Go string `json:"go"`
	// Platform is GOOS/GOARCH.
	Platform string `json:"platform"`
}

// Get returns this binary's build. It is cheap enough for a start-up path, not for a hot one.
func Get() Info {
	build, _ := debug.ReadBuildInfo()
	return resolve(Version, Commit, Date, build)
}

// String is the one line that `runnel version` prints.
func (i Info) String() string {
	return fmt.Sprintf("runnel %s (commit %s, %s, %s, %s)", i.Version, i.Commit, i.Date, i.Go, i.Platform)
}

// resolve prefers the linker's values to those in build, which is nil when the toolchain recorded nothing.
func resolve(version, commit, date string, build *debug.BuildInfo) Info {
	info := Info{
		Version:  version,
		Commit:   commit,
		Date:     date,
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if build != nil {
		fillFrom(&info, build)
	}
	if info.Version == "" {
		info.Version = "devel"
	}
	if info.Commit == "" {
		info.Commit = Unknown
	}
	if info.Date == "" {
		info.Date = Unknown
	}
	return info
}

// fillFrom sets the fields that are still empty from what the toolchain recorded.
func fillFrom(info *Info, build *debug.BuildInfo) {
	if v := build.Main.Version; info.Version == "" && v != "(devel)" {
		info.Version = v
	}
	settings := make(map[string]string, len(build.Settings))
	for _, s := range build.Settings {
		settings[s.Key] = s.Value
	}
	if info.Commit == "" {
		info.Commit = settings["vcs.revision"]
		if info.Commit != "" && settings["vcs.modified"] == "true" {
			info.Commit += "-dirty"
		}
	}
	if info.Date == "" {
		info.Date = settings["vcs.time"]
	}
}
