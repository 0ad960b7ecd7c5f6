package shell

import "testing"

// TestWhatIsTypedNamesTheProgram: a text that was printed in a container names the script of its host, in front of each
// command that it takes.
func TestWhatIsTypedNamesTheProgram(t *testing.T) {
	t.Setenv(ProgramVariable, "")
	if got := Typed("egressd why ID"); got != "egressd why ID" {
		t.Errorf("without the variable: %s", got)
	}
	t.Setenv(ProgramVariable, "/home/me/app/egressd")
	for in, want := range map[string]string{
		"egressd why ID": "/home/me/app/egressd why ID",
		"egressd answer ID yes, or egressd answer ID no": "/home/me/app/egressd answer ID yes, or /home/me/app/egressd answer ID no",
		"keep it (egressd log verify)":                   "keep it (/home/me/app/egressd log verify)",
		"/home/me/app/egressd why ID":                    "/home/me/app/egressd why ID",
		"egressd serve, before Codex is started":         "egressd serve, before Codex is started",
		"correct egressd.yaml":                           "correct egressd.yaml",
	} {
		if got := Typed(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
