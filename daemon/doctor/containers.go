package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/containers"
)

// engineFindings say what the engine answers that sandboxes are told by.
func engineFindings(c *config.Config) []Finding {
	if !c.File.AsksDocker() {
		return nil
	}
	socket := c.EngineSocket()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	all, err := containers.Running(ctx, socket)
	if err != nil {
		return []Finding{{"containers", fmt.Sprintf("the engine cannot be asked at %s, so that its containers are unknown, and refused: %v", socket, err), "start Docker, or let egressd's user read and write the socket; docker.socket in " + c.Path + " names another"}}
	}
	entries, err := c.Entries()
	if err != nil {
		return []Finding{{"containers", err.Error(), "egressd policy check"}}
	}
	d, err := sandbox.NewDirectory(entries)
	if err != nil {
		return []Finding{{"containers", err.Error(), "egressd policy check"}}
	}
	var found []Finding
	of := 0
	for _, k := range all {
		names := d.Claims(k)
		if len(names) > 0 {
			of++
		}
		if len(names) > 1 {
			found = append(found, Finding{"containers", fmt.Sprintf("%.128s is that of the sandboxes %s, and thus nobody's", k.Name, strings.Join(names, " and ")), "let docker of one sandbox alone fit it, in " + c.Path})
		}
	}
	return append([]Finding{{Check: "containers", Says: fmt.Sprintf("the engine at %s answers; %s, %d of them of a sandbox", socket, quantity.Plural(len(all), "container")+" run", of)}}, found...)
}
