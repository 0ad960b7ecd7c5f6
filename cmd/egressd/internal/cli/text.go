package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/egressd/egressd/internal/printable"
)

// PrintJSON writes v as one line of ASCII.
func PrintJSON(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	_, err = w.Write(append(printable.JSON(text), '\n'))
	return err
}

// PrintEach writes each element as one line of ASCII.
func PrintEach[T any](w io.Writer, all []T) error {
	for i := range all {
		if err := PrintJSON(w, &all[i]); err != nil {
			return err
		}
	}
	return nil
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull) // standard input is often that, under another name
	return err != nil || !os.SameFile(info, null)
}

// A Palette colours text for a terminal. The zero value leaves it as it is.
type Palette struct{ on bool }

// PaletteFor returns colours where w is a terminal and NO_COLOR is not set.
func PaletteFor(w io.Writer) Palette {
	return Palette{on: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && IsTerminal(w)}
}

// Paint returns s in a colour, given by its code of ECMA-48.
func (p Palette) Paint(code, s string) string {
	if !p.on {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// Mark returns the shape of an action, coloured: a verdict is never told by
// its colour alone.
func (p Palette) Mark(action string) string {
	switch action {
	case "allow":
		return p.Paint("32", "✓")
	case "ask":
		return p.Paint("33", "?")
	case "deny":
		return p.Paint("31", "✗")
	default:
		return "·"
	}
}

// Bold returns s in bold.
func (p Palette) Bold(s string) string { return p.Paint("1", s) }

// Field writes a line with a name and a value, and none for an empty value.
func Field(b *strings.Builder, name, value string) {
	if value != "" {
		fmt.Fprintf(b, "  %-11s  %s\n", name, printable.Text(value))
	}
}
