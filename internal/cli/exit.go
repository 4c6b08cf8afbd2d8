package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"runnel.dev/runnel/client"
)

// Exit codes, as documented for users.
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitPartial = 3
	exitUnknown = 4
)

// usageError is a command line that cannot be meant.
type usageError struct {
	err     error
	command string
}

func (e usageError) Error() string {
	return fmt.Sprintf("%v\nTry: %s --help", e.err, e.command)
}
func (e usageError) Unwrap() error { return e.err }

// partialError says that some of the work was done, and some not.
type partialError struct{ err error }

func (e partialError) Error() string { return e.err.Error() }
func (e partialError) Unwrap() error { return e.err }

// adviceError adds the next command to try.
type adviceError struct {
	err    error
	advice string
}

func (e adviceError) Error() string { return e.err.Error() + "\nTry: " + e.advice }
func (e adviceError) Unwrap() error { return e.err }

func usagef(c *cobra.Command, format string, args ...any) error {
	return usageError{err: fmt.Errorf(format, args...), command: c.CommandPath()}
}

// args wraps cobra's argument checks, so that their faults count as usage errors.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, v []string) error {
		if err := check(c, v); err != nil {
			return usageError{err: err, command: c.CommandPath()}
		}
		return nil
	}
}

var noArgs = args(cobra.NoArgs)

func exactArgs(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, v []string) error {
		if len(v) != n {
			return usagef(c, "got %s, want: %s %s", counted(int64(len(v)), "argument"), c.Parent().CommandPath(), c.Use)
		}
		return nil
	}
}

func minArgs(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, v []string) error {
		if len(v) < n {
			return usagef(c, "got %s, want: %s %s", counted(int64(len(v)), "argument"), c.Parent().CommandPath(), c.Use)
		}
		return nil
	}
}

// flagFault says in one line which flag is wrong, and why.
func flagFault(c *cobra.Command, err error) error {
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		reason := bad.Unwrap()
		if number, ok := errors.AsType[*strconv.NumError](reason); ok {
			reason = number.Err
		}
		return usagef(c, "--%s %q: %s", bad.GetFlag().Name, bad.GetValue(), strings.TrimPrefix(reason.Error(), "time: "))
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name, meant := unknown.GetSpecifiedName(), ""
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if len(name) > 1 && !f.Hidden && (strings.HasPrefix(f.Name, name) || strings.HasPrefix(name, f.Name)) {
				meant = f.Name
			}
		})
		if meant != "" {
			return usagef(c, "%w, did you mean --%s?", err, meant)
		}
	}
	return usageError{err: err, command: c.CommandPath()}
}

// group is the RunE of a command that only holds others.
func group(c *cobra.Command, v []string) error {
	if len(v) == 0 {
		return c.Help()
	}
	c.SuggestionsMinimumDistance = 2
	if similar := c.SuggestionsFor(v[0]); len(similar) > 0 {
		return usagef(c, "unknown command %q, did you mean %s?", v[0], strings.Join(similar, " or "))
	}
	return usagef(c, "unknown command %q", v[0])
}

// report prints err and says how the process should exit.
func (a *app) report(err error) int {
	if err == nil || errors.Is(err, syscall.EPIPE) {
		return exitOK // whoever reads the output has seen enough
	}
	code := exitCode(err)
	text := err.Error()
	if code == exitFailed && errors.Is(err, context.Canceled) {
		text = "interrupted"
	}
	fmt.Fprintln(a.Err, "runnel: "+sanitize(text))
	return code
}

func exitCode(err error) int {
	var usage usageError
	var partial partialError
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, client.ErrOutcomeUnknown):
		return exitUnknown
	case errors.As(err, &partial):
		return exitPartial
	default:
		return exitFailed
	}
}
