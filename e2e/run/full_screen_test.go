package run

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestRunWritesNothingOverAFullScreenProgram has a program draw on the whole terminal and be denied meanwhile. The line comes once
// the terminal is as it was, or at the end.
func TestRunWritesNothingOverAFullScreenProgram(t *testing.T) {
	const draws = `import curses, subprocess, time
def screen(s):
    s.addstr(0, 0, "full screen"); s.refresh()
    subprocess.run(["curl", "-so", "/dev/null", "http://evil.test/"])
    time.sleep(4)
    s.addstr(1, 0, "last word"); s.refresh()
curses.wrapper(screen)
print("drawn", flush=True)
`
	d := world.NewDaemon(t, world.RunPolicy)
	writeFiles(t, d, 0o644, map[string]string{"draws.py": draws})
	for script, late := range map[string]bool{
		"python3 draws.py; sleep 3; echo lines": false,
		"python3 draws.py":                      true,
	} {
		cmd := jailed(t.Context(), d, "user", nil, "sh", "-c", script)
		cmd.Env = append(cmd.Env, "TERM=xterm")
		c := onTerminal(t, d, cmd)
		c.until("full screen")
		if drawn := c.until("drawn"); strings.Contains(drawn, "denied") {
			t.Errorf("%s: a line over it: %q", script, drawn)
		}
		if !late {
			if before := c.until("lines"); !strings.Contains(before, "egressd: denied: evil.test:80") {
				t.Errorf("%s: nothing was said before the end: %q", script, before)
			}
		}
		c.until("evil.test:80 (default-deny")
	}
}
