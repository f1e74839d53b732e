package rocketpost;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.BatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;

/**
 * Plans batch scans of Python data sources as Spark does, without the projection that copies each row.
 *
 * Spark puts the projection over every source that returns rows, because some sources return rows that are
 * not UnsafeRows. The reader of Python sources turns Arrow batches into UnsafeRows itself.
 */
public final class ScansWithoutCopy extends SparkStrategy {
    private final DataSourceV2Strategy usual;

    public ScansWithoutCopy(SparkSession session) {
        this.usual = new DataSourceV2Strategy(session);
    }

    public Seq apply(LogicalPlan plan) {
        Seq none = (Seq) Nil$.MODULE$;
        if (!(plan instanceof DataSourceV2ScanRelation)
                || !(((DataSourceV2ScanRelation) plan).scan() instanceof PythonScan)) {
            return none;
        }
        Seq plans = this.usual.apply(plan);
        if (plans.length() != 1 || !(plans.head() instanceof ProjectExec)) {
            return none;
        }
        ProjectExec projection = (ProjectExec) plans.head();
        SparkPlan scan = (SparkPlan) projection.child();
        boolean isCopy = scan instanceof BatchScanExec && scan.output().equals(projection.projectList());
        return isCopy ? (Seq) none.prepended(scan) : none;
    }
}
