package integrate

import (
	_ "embed"
	"path/filepath"
	"strings"
)

//go:embed bubblewrap.sh
var bubblewrap string

// Bubblewrap returns a script at path that is bwrap, but for the network, which is that
// of a sandbox of egressd: program hands it in at socket. Both are words that a shell reads as
// they are.
func Bubblewrap(path, name, program, socket string) Set {
	text := strings.NewReplacer("NAME", name, "SCRIPT", filepath.Base(path), "EGRESSD", program, "SOCKET", socket).Replace(bubblewrap)
	return Set{
		Files: []Made{{path, text, 0o755}},
		Notes: []string{
			"egressd serve, then " + path + " with the options of bwrap",
			"without a daemon: egressd run --nested -- bwrap OPTIONS; without bwrap: egressd run --fs -- COMMAND, which hides the machine's sockets too",
		},
	}
}
