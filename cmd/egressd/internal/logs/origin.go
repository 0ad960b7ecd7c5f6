package logs

import (
	"os"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/records/export"
)

// Origin is what exported events say of this machine.
func Origin() export.Origin {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	return export.Origin{Version: cli.ThisBuild().Version, Host: host}
}
