// Reads a dashboard by Grafana's own types, strictly: unknown fields, wrong types and missing fields are errors.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func main() {
	types := cog.NewRuntime()
	types.RegisterPanelcfgVariant(stat.VariantConfig())
	types.RegisterPanelcfgVariant(table.VariantConfig())
	types.RegisterPanelcfgVariant(timeseries.VariantConfig())
	types.RegisterDataqueryVariant(prometheus.VariantConfig())
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	found := dashboard.Dashboard{}
	for _, err := range []error{found.UnmarshalJSONStrict(text), found.Validate()} {
		if err != nil && err.Error() != "" { // it may be a list of none
			fmt.Println(err)
			os.Exit(1)
		}
	}
}
