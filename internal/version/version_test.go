package version

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestResolve(t *testing.T) {
	recorded := func(version string, modified string) *debug.BuildInfo {
		return &debug.BuildInfo{
			Main: debug.Module{Path: "runnel.dev/runnel", Version: version},
			Settings: []debug.BuildSetting{
				{Key: "vcs.revision", Value: "abc1234"},
				{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
				{Key: "vcs.modified", Value: modified},
			},
		}
	}
	tests := []struct {
		name                  string
		version, commit, date string
		build                 *debug.BuildInfo
		want                  Info
	}{
		{
			name:    "linker flags win",
			version: "v0.1.0", commit: "fff0000", date: "2026-05-05T00:00:00Z",
			build: recorded("v9.9.9", "true"),
			want:  Info{Version: "v0.1.0", Commit: "fff0000", Date: "2026-05-05T00:00:00Z"},
		},
		{
			name:  "go install of a release",
			build: &debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}},
			want:  Info{Version: "v0.1.0", Commit: Unknown, Date: Unknown},
		},
		{
			name:  "go build in a changed clone",
			build: recorded("(devel)", "true"),
			want:  Info{Version: "devel", Commit: "abc1234-dirty", Date: "2026-01-02T03:04:05Z"},
		},
		{
			name:  "go build in a clean clone",
			build: recorded("(devel)", "false"),
			want:  Info{Version: "devel", Commit: "abc1234", Date: "2026-01-02T03:04:05Z"},
		},
		{
			name: "nothing recorded",
			want: Info{Version: "devel", Commit: Unknown, Date: Unknown},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.Go = runtime.Version()
			tt.want.Platform = runtime.GOOS + "/" + runtime.GOARCH
			if got := resolve(tt.version, tt.commit, tt.date, tt.build); got != tt.want {
				t.Errorf("resolve() = %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestStringNamesVersionAndCommit(t *testing.T) {
	got := Info{Version: "v0.1.0", Commit: "abc1234", Date: Unknown, Go: "go1.26.0", Platform: "linux/amd64"}.String()
	for _, want := range []string{"runnel v0.1.0", "abc1234", "go1.26.0", "linux/amd64"} {
		if !strings.Contains(got, want) {
			t.Errorf("String() = %q, want it to name %q", got, want)
		}
	}
	if strings.Contains(got, "\n") {
		t.Errorf("String() = %q, want one line", got)
	}
}

func TestGetFillsEveryField(t *testing.T) {
	got := Get()
	if got.Version == "" || got.Commit == "" || got.Date == "" || got.Go == "" || got.Platform == "" {
		t.Errorf("Get() = %+v, want every field set", got)
	}
}
