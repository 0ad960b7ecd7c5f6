// Package bubblewrap makes a script that takes the options of bwrap, with the network of a sandbox of egressd.
package bubblewrap

import (
	_ "embed"
	"path/filepath"
	"strings"

	"github.com/egressd/egressd/integrations"
)

//go:embed bubblewrap.sh
var bubblewrap string

// Files returns a script at path that is bwrap, but for the network, which is that
// of a sandbox of egressd: program hands it in at socket. Both are words that a shell reads as
// they are.
func Files(path, name, program, socket string) integrations.Set {
	text := strings.NewReplacer("NAME", name, "SCRIPT", filepath.Base(path), "EGRESSD", program, "SOCKET", socket).Replace(bubblewrap)
	return integrations.Set{
		Files: []integrations.Made{{Path: path, Text: text, Mode: 0o755}},
		Notes: []string{
			"egressd serve, then " + path + " with the options of bwrap",
			"without a daemon: egressd run --nested -- bwrap OPTIONS; without bwrap: egressd run --fs -- COMMAND, which hides the machine's sockets too",
		},
	}
}
