package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/hint"
)

func TestReportNeverPrintsControlCharacters(t *testing.T) {
	var b strings.Builder
	if code := Report(&b, hint.Failed(errEvil, "")); code != ExitFailed {
		t.Errorf("code %d, want %d", code, ExitFailed)
	}
	const want = "egressd: error: host \\x1b[31m\negressd: error: second line\negressd: hint: egressd help\n"
	if b.String() != want {
		t.Errorf("printed %q, want %q", b.String(), want)
	}
}

const errEvil = evil("host \x1b[31m\nsecond line")

type evil string

func (e evil) Error() string { return string(e) }

func TestPaletteIsForTerminalsAndObeysNoColor(t *testing.T) {
	terminal, err := os.OpenFile("/dev/zero", os.O_WRONLY, 0) // a character device, as terminals are
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	if !PaletteFor(terminal).on {
		t.Error("no colour on a terminal")
	}
	if PaletteFor(file).on || PaletteFor(new(strings.Builder)).on {
		t.Error("colour in a file")
	}
	t.Setenv("NO_COLOR", "1")
	if PaletteFor(terminal).on {
		t.Error("colour against NO_COLOR")
	}
}

func TestMarkTellsActionsApartWithoutColour(t *testing.T) {
	for action, want := range map[string]string{"allow": "✓", "deny": "✗", "ask": "?", "": "·"} {
		if got := (Palette{}).Mark(action); got != want {
			t.Errorf("the mark of %q is %q, want %q", action, got, want)
		}
		if got := (Palette{on: true}).Mark(action); !strings.Contains(got, want) {
			t.Errorf("the coloured mark of %q is %q, without its shape", action, got)
		}
	}
}

// TestTheNullDeviceIsNoTerminal also where standard input is it, which goes by another name then.
func TestTheNullDeviceIsNoTerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if IsTerminal(null) || IsTerminal(os.NewFile(null.Fd(), "/dev/stdin")) {
		t.Error("it is one")
	}
}
