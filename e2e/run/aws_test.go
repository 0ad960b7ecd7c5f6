package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestNoKeyOfAWSIsInside has a program look for the key in its environment, in those of all processes, in the file of profiles and
// in what is mounted there.
func TestNoKeyOfAWSIsInside(t *testing.T) {
	const (
		id, secret, token = "ASIAREALREALREALREAL", "REALsecretREALsecretREALsecretREALsecret", "REALtokenREALtokenREALtoken"
		policy            = `version: 1
allow: [sts.eu-west-1.amazonaws.com]
credentials:
  - {for: aws, from: %s, regions: [eu-west-1], services: [sts]}
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`
		script = `env | grep -E '^AWS_(ACCESS|SECRET|SESSION)' | sort
cat "$HOME/.aws/credentials" /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\0' '\n' | grep -E 'REAL(secret|token|REAL)R[E]AL'
grep -rE 'REAL(secret|token|REAL)R[E]AL' "$HOME" 2>/dev/null
echo over`
	)
	for _, row := range []struct{ says, from string }{
		{"a profile", "{profile: agent}"},
		{"variables", "{env: AGENT_AWS_ACCESS_KEY_ID}"},
	} {
		t.Run(row.says, func(t *testing.T) {
			d := world.NewDaemon(t, "")
			writeFiles(t, d, 0o600, map[string]string{".aws/credentials": fmt.Sprintf("[agent]\naws_access_key_id = %s\naws_secret_access_key = %s\naws_session_token = %s\n", id, secret, token)})
			if err := os.WriteFile(d.Config, fmt.Appendf(nil, policy, row.from), 0o600); err != nil {
				t.Fatal(err)
			}
			before := []string{"env", "HOME=" + d.Dir}
			if row.says == "variables" {
				if err := os.RemoveAll(filepath.Join(d.Dir, ".aws")); err != nil {
					t.Fatal(err)
				}
				before = append(before, "AGENT_AWS_ACCESS_KEY_ID="+id, "AGENT_AWS_SECRET_ACCESS_KEY="+secret, "AGENT_AWS_SESSION_TOKEN="+token, "AWS_SESSION_TOKEN="+token)
			}
			e := d.RunCommand(t, before, "run", "--config", d.Config, "--", "sh", "-c", script)
			lines := strings.Split(e.Out, "\n")
			if e.Code != 0 || strings.Contains(e.Out+e.Talk, "REAL") || len(lines) != 5 || !strings.HasPrefix(lines[0], "AWS_ACCESS_KEY_ID=ASIAEGRESSD") ||
				!strings.HasPrefix(lines[1], "AWS_SECRET_ACCESS_KEY=EGRESSD") || !strings.HasPrefix(lines[2], "AWS_SESSION_TOKEN=EGRESSD") || lines[3] != "over" {
				t.Errorf("exit %d, printed %q (%s)", e.Code, e.Out, e.Talk)
			}
		})
	}
}
