package other

import "testing"

func TestRoffTakesNoTextForARequest(t *testing.T) {
	for in, want := range map[string]string{
		".TH x":         `\&.TH x`,
		"a\n'br":        "a\n\\&'br",
		`back\slash -x`: `back\eslash \-x`,
	} {
		if got := roff(in); got != want {
			t.Errorf("roff(%q) = %q, want %q", in, got, want)
		}
	}
}
