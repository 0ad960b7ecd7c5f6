package gitwire

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// RefMost is the most bytes of a ref that a push may name.
const RefMost = 200

// CheckRef returns an error for a text that is no full name of a ref (git-check-ref-format), is no printable UTF-8 or is
// longer than [RefMost].
func CheckRef(ref string) error {
	switch {
	case len(ref) > RefMost:
		return fmt.Errorf("a ref has more than %d bytes", RefMost)
	case !utf8.ValidString(ref) || strings.ContainsFunc(ref, func(c rune) bool { return !unicode.IsPrint(c) || unicode.IsSpace(c) }):
		return fmt.Errorf("a ref has bytes that cannot be printed, or a space")
	case !strings.HasPrefix(ref, "refs/"):
		return fmt.Errorf("a ref does not begin with refs/")
	case strings.ContainsAny(ref, `~^:?*[\`), strings.Contains(ref, ".."), strings.Contains(ref, "@{"), strings.HasSuffix(ref, "."):
		return fmt.Errorf("a ref has a character that no ref has, two dots, @{, or a dot at its end")
	}
	for part := range strings.SplitSeq(ref, "/") {
		if part == "" || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
			return fmt.Errorf("a part of a ref is empty, begins with a dot or ends with .lock")
		}
	}
	return nil
}
