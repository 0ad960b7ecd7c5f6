package other

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/version"
	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, and how to upgrade",
		Args:  cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), version.This())
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), version.This()); err != nil {
				return err
			}
			program, _ := os.Executable()
			hint.Sayf(cmd.ErrOrStderr(), "to upgrade: %s; egressd help upgrade", upgrade("/", program))
			return nil
		},
	}
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

const releases = "https://github.com/egressd/egressd/releases"

// upgrade says how a newer egressd comes to the place of a program. Files of package managers below root tell how it came there.
func upgrade(root, program string) string {
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(root, name))
		return err == nil
	}
	switch {
	case program == "/usr/bin/egressd" && exists("var/lib/dpkg/info/egressd.list"):
		return "sudo apt install ./egressd_VERSION_ARCH.deb, from " + releases
	case program == "/usr/bin/egressd" && (exists("var/lib/rpm") || exists("usr/lib/sysimage/rpm")):
		return "sudo dnf upgrade ./egressd-VERSION-1.ARCH.rpm, from " + releases
	case program == "/usr/bin/egressd" && (exists(".dockerenv") || exists("run/.containerenv")):
		return "docker load -i egressd-image_VERSION_ARCH.tar, from " + releases + ", and start the container again"
	}
	return "put the program of " + releases + " in the place of " + program
}
