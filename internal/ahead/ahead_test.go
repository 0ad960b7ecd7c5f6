package ahead

import "testing"

// TestOnlyRunIsBegun has command lines that are not those of run start nothing.
func TestOnlyRunIsBegun(t *testing.T) {
	for _, args := range [][]string{nil, {"egressd"}, {"run"}, {"egressd", "serve"}, {"egressd", "help", "run"}, {"egressd", "check", "run"}, {"egressd", Argument, "3"}, {"egressd", "running"}} {
		if begin(args) != nil {
			t.Errorf("%q was begun", args)
		}
	}
	if begun != nil {
		t.Error("this test was begun")
	}
}
