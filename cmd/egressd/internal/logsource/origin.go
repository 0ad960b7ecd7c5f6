package logsource

import (
	"os"

	"github.com/egressd/egressd/internal/version"
	"github.com/egressd/egressd/logs/export"
)

// Origin is what exported events say of this machine.
func Origin() export.Origin {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	return export.Origin{Version: version.This().Version, Host: host}
}
