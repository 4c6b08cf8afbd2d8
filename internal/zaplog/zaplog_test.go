package zaplog_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"

	"runnel.dev/runnel/internal/zaplog"
)

func TestEntriesKeepLevelOrderAndFields(t *testing.T) {
	var out bytes.Buffer
	lg := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
	z := zaplog.New(lg, slog.LevelInfo).With(zap.String("member", "m1"))
	z.Debug("dropped")
	z.Info("started", zap.Int("port", 1), zap.Strings("urls", []string{"a", "b"}))
	z.Error("failed", zap.Error(errors.New("disk on fire")))
	want := "level=INFO msg=started member=m1 port=1 urls=\"[a b]\"\nlevel=ERROR msg=failed member=m1 error=\"disk on fire\"\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if strings.Contains(out.String(), "dropped") {
		t.Error("an entry below the least level was written")
	}
}
