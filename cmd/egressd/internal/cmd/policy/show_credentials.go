package policy

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/credentials"
)

// listOfCredentials is the word for the table of kinds of credentials.
const listOfCredentials = "credentials"

// A kindLine is what the table says of a kind.
type kindLine struct {
	Name      string   `json:"name"`
	About     string   `json:"about"`
	Places    []string `json:"places"` // where the secret stands, host by host
	Variables []string `json:"variables,omitempty"`
	Denied    []string `json:"denied,omitempty"` // endpoints that hand out new secrets
	Signed    []string `json:"signed,omitempty"` // of AWS: services, and their operations
	Asked     []string `json:"asked,omitempty"`  // of registries: their token services
}

func lineOfKind(k *credentials.Kind) kindLine {
	line := kindLine{Name: k.Name, About: k.Says}
	for _, p := range k.Places {
		where := "field " + p.Header
		if p.Query != "" {
			where = "parameter " + p.Query
		}
		host := p.Host
		if strings.HasPrefix(host, ".") {
			host = "*" + host
		}
		if p.Under != "" {
			host += p.Under
		}
		line.Places = append(line.Places, fmt.Sprintf("%s: %s (%s)", host, where, p.Forms))
	}
	for _, v := range k.Variables {
		line.Variables = append(line.Variables, v.Name)
	}
	for _, m := range k.Mints {
		host := m.Host
		if host == "" {
			host = "its hosts"
		}
		methods := strings.Join(m.Methods, "|")
		if methods != "" {
			methods += " "
		}
		line.Denied = append(line.Denied, fmt.Sprintf("%s: %s%s", host, methods, strings.Join(m.Paths, " ")))
	}
	if k.Name == credentials.AWS {
		for _, s := range credentials.AWSServices() {
			line.Signed = append(line.Signed, s.Name+": "+strings.Join(s.Says(), ", "))
		}
	}
	if k.Name == credentials.Docker {
		services := credentials.TokenServices()
		for _, host := range slices.Sorted(maps.Keys(services)) {
			line.Asked = append(line.Asked, fmt.Sprintf("%s: %s (service %s)", host, services[host].Realm, services[host].Service))
		}
	}
	return line
}

// listCredentials prints the table of kinds.
func listCredentials(w io.Writer, asJSON bool) error {
	var b strings.Builder
	for _, k := range credentials.Kinds() {
		line := lineOfKind(&k)
		if asJSON {
			if err := cli.PrintJSON(w, line); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(&b, "%s: %s\n", line.Name, line.About)
		for _, p := range line.Places {
			fmt.Fprintf(&b, "  secret   %s\n", p)
		}
		if len(line.Variables) > 0 {
			fmt.Fprintf(&b, "  exports  %s\n", strings.Join(line.Variables, ", "))
		}
		for _, d := range line.Denied {
			fmt.Fprintf(&b, "  denied   %s\n", d)
		}
		for _, d := range line.Signed {
			fmt.Fprintf(&b, "  signed   %s\n", d)
		}
		for _, d := range line.Asked {
			fmt.Fprintf(&b, "  asked    %s\n", d)
		}
	}
	if !asJSON {
		fields, parameters := credentials.KnownPlaces()
		fmt.Fprintf(&b, "Other credentials are refused in the fields %s and the parameters %s.\nCompared with what the tools send on %s.\n",
			strings.Join(fields, ", "), strings.Join(parameters, ", "), credentials.KindsDate)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
