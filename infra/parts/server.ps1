# The SQL server and its database. Only Entra ID lets anybody in.
Set-StrictMode -Version Latest

function Confirm-Server {
    <#
    .SYNOPSIS
        Creates the server, or brings the one that is there to Entra-only authentication and the chosen network access.
    #>
    [CmdletBinding(SupportsShouldProcess)]
    param(
        [Parameter(Mandatory)] [string] $ResourceGroupName,
        [Parameter(Mandatory)] [string] $ServerName,
        [Parameter(Mandatory)] [string] $Location,
        [Parameter(Mandatory)] [string] $AdminName,
        [Parameter(Mandatory)] [guid] $AdminObjectId,
        [switch] $PrivateOnly
    )
    $server = @{ ResourceGroupName = $ResourceGroupName; ServerName = $ServerName }
    $publicAccess = if ($PrivateOnly) { 'Disabled' } else { 'Enabled' }
    $found = Get-AzSqlServer @server -ErrorAction SilentlyContinue
    if (-not $found) {
        if ($PSCmdlet.ShouldProcess($ServerName, "Create the SQL server with the Entra admin $AdminName")) {
            $new = $server + @{
                Location                                = $Location
                EnableActiveDirectoryOnlyAuthentication = $true
                ExternalAdminName                       = $AdminName
                ExternalAdminSID                        = $AdminObjectId
                MinimalTlsVersion                       = '1.2'
                PublicNetworkAccess                     = $publicAccess
                Tags                                    = $madeBy
            }
            New-AzSqlServer @new | Out-Null
        }
        return
    }
    if ($found.PublicNetworkAccess -ne $publicAccess -and
        $PSCmdlet.ShouldProcess($ServerName, "Set the access from the internet to $publicAccess")) {
        Set-AzSqlServer @server -PublicNetworkAccess $publicAccess | Out-Null
    }
    $admin = Get-AzSqlServerActiveDirectoryAdministrator @server
    if ((-not $admin -or [guid] $admin.ObjectId -ne $AdminObjectId) -and
        $PSCmdlet.ShouldProcess($ServerName, "Make $AdminName the Entra admin")) {
        Set-AzSqlServerActiveDirectoryAdministrator @server -DisplayName $AdminName -ObjectId $AdminObjectId | Out-Null
    }
    $only = Get-AzSqlServerActiveDirectoryOnlyAuthentication @server
    if (-not $only.AzureADOnlyAuthentication -and
        $PSCmdlet.ShouldProcess($ServerName, 'Allow Entra ID only, and no SQL logins')) {
        Enable-AzSqlServerActiveDirectoryOnlyAuthentication @server | Out-Null
    }
}

function Confirm-Database {
    <#
    .SYNOPSIS
        Creates the database, or moves the one that is there to the chosen tier.
    .NOTES
        A serverless database never pauses here: beats look at it all the time, and each resume would be an outage of a minute.
    #>
    [CmdletBinding(SupportsShouldProcess)]
    param(
        [Parameter(Mandatory)] [string] $ResourceGroupName,
        [Parameter(Mandatory)] [string] $ServerName,
        [Parameter(Mandatory)] [string] $DatabaseName,
        [Parameter(Mandatory)] [string] $Tier,
        [Parameter(Mandatory)] [int] $VCores,
        [Parameter(Mandatory)] [string] $BackupStorageRedundancy
    )
    $database = @{ ResourceGroupName = $ResourceGroupName; ServerName = $ServerName; DatabaseName = $DatabaseName }
    $size = @{ Edition = 'GeneralPurpose'; ComputeGeneration = 'Gen5'; VCore = $VCores; ComputeModel = $Tier }
    if ($Tier -eq 'Serverless') {
        # An eighth of the cores is the least that the service takes, and half a core where that is less.
        $size += @{ MinimumCapacity = [Math]::Max(0.5, $VCores / 8); AutoPauseDelayInMinutes = -1 }
    }
    $found = Get-AzSqlDatabase @database -ErrorAction SilentlyContinue
    if (-not $found) {
        if ($PSCmdlet.ShouldProcess("$ServerName/$DatabaseName", "Create the database, $Tier with $VCores cores")) {
            New-AzSqlDatabase @database @size -BackupStorageRedundancy $BackupStorageRedundancy -Tags $madeBy | Out-Null
        }
        return
    }
    # As the service names it: GP_S_Gen5_2 or GP_Gen5_2.
    $wanted = if ($Tier -eq 'Serverless') { "GP_S_Gen5_$VCores" } else { "GP_Gen5_$VCores" }
    if ($found.CurrentServiceObjectiveName -ne $wanted -and
        $PSCmdlet.ShouldProcess("$ServerName/$DatabaseName", "Move the database to $Tier with $VCores cores")) {
        Set-AzSqlDatabase @database @size | Out-Null
    }
}
